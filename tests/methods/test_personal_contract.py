"""The contract suite, resuming included, around methods that send nothing beside the model, train
at a server and look at peers: personalizations and robust sums.
"""

from typing import Any

import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import Method
from fedjax_ssl.federated.uploads.faults import false_updates
from fedjax_ssl.federated.uploads.sums import geometric_median, median, norm_bound, trimmed_mean
from fedjax_ssl.methods.around.ditto import apfl, ditto
from fedjax_ssl.methods.around.fedbn import fedbn
from fedjax_ssl.testing import PROMISES, promises
from tests import toy
from tests.methods import cases

METHODS = ("fedavg", "semifl", "xclp")
WRAPPERS = {"fedbn": fedbn, "ditto": ditto, "apfl": apfl}
SUMS = {
    "median": median(),
    "trimmed_mean": trimmed_mean(),
    "geometric_median": geometric_median(),
    "norm_bound": norm_bound(),
}


@pytest.fixture(
    scope="module",
    params=[f"{what} {name}" for what in (*WRAPPERS, *SUMS) for name in METHODS],
)
def case(request: pytest.FixtureRequest) -> promises.Trial:
    what, name = request.param.split()

    def build(data: Any, **changes: Any) -> Method:
        options = {"norm": "bn"} if what == "fedbn" else None
        setup = toy.setup(data, model_options=options, augment=toy.jitter, **changes)
        if what in SUMS:
            setup = setup._replace(summation=SUMS[what], uploads=(false_updates(2.0, 0.2, 6),))
        recipe = methods.recipe(name, setup, **cases.of(name).settings)
        return federated.build(WRAPPERS[what](recipe) if what in WRAPPERS else recipe)

    return promises.trial_of(build, cases.special(name), toy.weak_federation)


@pytest.mark.thorough
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_promise_is_kept(case: promises.Trial, promise: Any) -> None:
    promise(case)
