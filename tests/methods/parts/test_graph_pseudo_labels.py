"""Pseudo-labels by propagation over the cohort's graph: which hash a round uses."""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.methods.parts.graph_pseudo_labels import check_graph_settings
from tests import toy

DATA = toy.federation(noise=1.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fixed", "warmup_rounds"),
    [(True, 0), (True, 1), (False, 0)],
)
def test_fixed_projections_stay_for_a_run_and_change_with_its_seed(fixed, warmup_rounds):
    """The network stands still and everybody takes part, so only the hash can change the confidences."""
    method = methods.build(
        "xclp",
        toy.setup(DATA, learning_rate=0.0),
        warmup_rounds=warmup_rounds,
        num_bits=32,
        num_neighbors=3,
        graph_features="inputs",
        fixed_projections=fixed,
    )
    step = jax.jit(method.round)
    start = method.init(jax.random.key(0), DATA)._replace(round=jax.numpy.int32(warmup_rounds))

    def confidences(seed):
        state, first = step(jax.random.key(seed), start, DATA)
        _, second = step(jax.random.key(seed), state, DATA)
        return [float(info["confidence_correct"]) for info in (first, second)]

    found = np.array([confidences(seed) for seed in (0, 1, 2)])
    assert len(set(found[:, 0])) == 3
    assert ((found[:, 0] == found[:, 1]) == fixed).all()


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="graph_features is 'pixels'"):
        check_graph_settings("pixels", "none")
    with pytest.raises(ValueError, match="class_weighting is 'kappa'"):
        check_graph_settings("network", "kappa")
