"""FedAvg+XCLP with its protocols: rounds on the host, and the same bits of the model at every level."""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.experiment.rounds import run_rounds
from tests import toy
from tests.secure import parties  # noqa: F401  skips without the packages

pytestmark = pytest.mark.thorough
KEY, ROUNDS = jax.random.key(0), 3
OPTIONS = dict(warmup_rounds=1, num_bits=32, num_neighbors=3)


def trained(data, **options):
    method = methods.build("xclp", toy.setup(data), **OPTIONS, **options)
    state = method.init(KEY, data)
    return run_rounds(method, KEY, state, data, ROUNDS)


def test_levels_train_the_same_model():
    data = toy.federation()
    found = {level: trained(data, protocol=level) for level in ("ideal", "accounted", "real")}
    for level in ("accounted", "real"):
        jax.tree.map(np.testing.assert_array_equal, found[level][0], found["ideal"][0])
    metrics = {
        level: {name: np.asarray(jax.tree.leaves(v)) for name, v in info.items()} for level, (_, info) in found.items()
    }
    for name in metrics["ideal"]:
        np.testing.assert_array_equal(metrics["real"][name], metrics["accounted"][name])
        if not name.startswith("bytes"):
            np.testing.assert_array_equal(metrics["real"][name], metrics["ideal"][name])
    assert (metrics["real"]["bytes_up"] != metrics["ideal"]["bytes_up"]).any()
    # The kernels do not round; the model is the same but for that.
    kernels = trained(data, protocol="none")[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-2), found["real"][0].params, kernels.params)


def test_a_traced_round_is_refused():
    data = toy.federation()
    method = methods.build("xclp", toy.setup(data), **OPTIONS | {"warmup_rounds": 0}, protocol="ideal")
    with pytest.raises(ValueError, match="an exchange runs on the host"):
        jax.eval_shape(method.round, KEY, method.init(KEY, data), data)
