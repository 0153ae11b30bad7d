"""The analytic costs of ProtoFSSL's Tables 1 and 2, to every printed digit."""

import jax
import pytest

from fedjax_ssl import models
from fedjax_ssl.methods.parts.cost_model import GIGA, MEGA, Work, protofssl_cost

SIZES = {"num_classes": 10, "num_features": 512}


def work(name, labelled=50, unlabelled=490):
    """Of a client of the paper, with one of the paper's networks."""
    model = models.build(name, num_classes=10, input_shape=(32, 32, 3))
    assert model.forward_operations is not None
    parameters = models.count_parameters(jax.eval_shape(model.init, jax.random.key(0))[0])
    return Work(labelled, unlabelled, model.forward_operations(), 4 * parameters)


@pytest.mark.parametrize(("helpers", "gflop", "megabytes"), [(2, 447.915, 52.588), (5, 447.922, 52.649)])
def test_table_2(helpers, gflop, megabytes):
    """Printed there: 447.9 and 52.6."""
    found = protofssl_cost(work("resnet8"), helpers, **SIZES)
    assert round(found.operations / GIGA, 3) == gflop
    assert round(found.bytes / MEGA, 3) == megabytes


def test_formulas_count_passes_and_helpers() -> None:
    small = Work(labelled=3, unlabelled=10, forward_operations=2, model_bytes=100, passes=4)
    # 5 features, 7 classes, 3 helpers: 5 * 3 * 7 multiplications for an unlabelled example, and 4 sets of 7 * 20 bytes.
    assert protofssl_cost(small, 3, 7, 5) == (2 * 13 * 4 + 105 * 10 * 4 + 2 * 3, 200 + 4 * 140)
    assert protofssl_cost(small._replace(unlabelled=0), 0, 7, 5) == (2 * 3 * 4 + 6, 200 + 140)


def test_a_round_of_the_paper_as_it_is_run() -> None:
    """Ten episodes of 30 labelled and 100 unlabelled examples, then 50 for the prototypes: 1,350 forward passes."""
    operations = work("resnet8").forward_operations
    trained, others = 10 * (3 * 10 + 100), 50
    assert round(operations * (trained + others) / GIGA, 1) == 1024.9
    assert round(operations * (3 * trained + others) / GIGA) == 2999
