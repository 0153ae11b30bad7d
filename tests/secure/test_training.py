"""FedAvg+XCLP with its protocols: rounds on the host, and the same bits of the model at every
level.
"""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.rounds import run_rounds
from tests import toy
from tests.secure.parties import record_keys

pytestmark = pytest.mark.thorough
KEY = jax.random.key(0)
ROUNDS = 3
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
    metrics = {level: info for level, (_, info) in found.items()}
    for name in metrics["ideal"]:
        equal = ["accounted"] if name.startswith("bytes") else ["accounted", "ideal"]
        for level in equal:
            jax.tree.map(np.testing.assert_array_equal, metrics["real"][name], metrics[level][name])
    real, ideal = (jax.tree.leaves(metrics[level]["bytes_up"]) for level in ("real", "ideal"))
    assert any((one != other).any() for one, other in zip(real, ideal, strict=True))
    # The kernels do not round; the model is the same but for that.
    kernels = trained(data, protocol="none")[0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-2),
        found["real"][0].params,
        kernels.params,
    )


def test_a_resumed_run_uses_no_key_again(tmp_path, monkeypatch):
    """Stopped inside round 3 and gone on with after round 2, by another start: the same model as
    without a stop, and of all keys and nonces of both starts none twice.
    """
    data = toy.federation()
    seals, streams = record_keys(monkeypatch)
    method, again = (
        methods.build("xclp", toy.setup(data), **OPTIONS, protocol="real") for _ in range(2)
    )
    checkpoints = Checkpoints(tmp_path)
    state, _ = run_rounds(method, KEY, method.init(KEY, data), data, 2)
    checkpoints.save(2, state)
    whole, _ = run_rounds(method, KEY, state, data, 1)
    first = len(seals), len(streams)
    _, state, _ = checkpoints.restore(jax.eval_shape(again.init, KEY, data))
    resumed, _ = run_rounds(again, KEY, state, data, 1)
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    # The two ends of a pair have the same stream; two starts have none in common.
    assert not set(seals[: first[0]]) & set(seals[first[0] :]) and len(set(seals)) == len(seals)
    assert not set(streams[: first[1]]) & set(streams[first[1] :]) and min(first) > 100


def test_a_traced_round_is_refused():
    data = toy.federation()
    method = methods.build(
        "xclp", toy.setup(data), **OPTIONS | {"warmup_rounds": 0}, protocol="ideal"
    )
    with pytest.raises(ValueError, match="an exchange runs on the host"):
        jax.eval_shape(method.round, KEY, method.init(KEY, data), data)
