"""Examples on the host: the same bits as on the device for methods that learn from their cohort;
the others say so.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import config as configs
from fedjax_ssl import data, methods, runs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import Dataset, HostInputs, Split
from fedjax_ssl.runs import residence as residence_module
from fedjax_ssl.runs import shared as shared_module
from fedjax_ssl.runs.build import Experiment
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.residence import Feed, cohorts_of
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.train import make_train
from tests import toy
from tests.runs.test_resume import rows_of
from tests.saved import state_of


def experiment(method="fedavg", residence="host", **fields):
    config = configs.load(f"digits:{method}")
    config.rounds = 5
    config.eval_every = 2
    config.data.residence = residence
    config.optimizer.local_epochs = 1
    config.federated.cohort_size = 3
    if "warmup_rounds" in config.method:
        config.method.warmup_rounds = 2
    config.update_from_flattened_dict(fields)
    return config


def toy_dataset(federation):
    inputs = np.asarray(federation.inputs)
    there = (Split(part, np.zeros(len(part), np.int32)) for part in (inputs[:40], inputs[40:]))
    return Dataset("toy", *there, class_names=("a",), input_max=1.0)


def toy_host(federation):
    """The toy federation's inputs as a host has them, and the federation with what is always on
    the device.
    """
    host = HostInputs(toy_dataset(federation))
    return host, dataclasses.replace(federation, inputs=data.load_examples(host, federation))


@pytest.mark.promise
@pytest.mark.thorough
def test_rounds_on_the_cohorts_examples_have_the_bits_of_rounds_on_all():
    cohort = 2
    whole = toy.federation(server=9)
    host, here = toy_host(whole)
    method = methods.build("fedavg", toy.setup(whole, cohort_size=cohort))
    key = jax.random.key(3)
    state = jax.jit(method.init)(key, whole)
    drawn = cohorts_of(method, key, jnp.int32(0), whole, rounds=2)
    width = data.most_rows(whole, 2 * cohort)
    loaded = dataclasses.replace(
        here, inputs=data.load_examples(host, whole, data.clients_of_devices(drawn), width, drawn)
    )
    assert len(loaded.inputs.values) == len(here.inputs.values) + width

    @jax.jit
    def two_rounds(state, federation):
        return jax.lax.scan(lambda s, _: method.round(key, s, federation), state, length=2)

    jax.tree.map(np.testing.assert_array_equal, two_rounds(state, whole), two_rounds(state, loaded))
    jax.tree.map(
        np.testing.assert_array_equal,
        whole.inputs[whole.test_index],
        np.asarray(loaded.inputs[whole.test_index]),
    )


@pytest.mark.promise
@pytest.mark.thorough
def test_a_test_split_that_is_not_used_counts_nowhere():
    whole = toy.federation()
    inputs = np.asarray(whole.inputs)
    splits = (Split(part, np.zeros(len(part), np.int32)) for part in (inputs, inputs[:5]))
    host = HostInputs(Dataset("toy", *splits, class_names=("a",), input_max=1.0))
    assert data.load_examples(host, whole).shape == whole.inputs.shape


def prepared(monkeypatch, large=None, residence="host", **fields):
    """A run on the toy federation, its examples where it leaves them; `large`: what is said of
    their size.
    """
    shared = Shared()
    whole = toy.federation()
    config = configs.resolve(experiment(residence=residence, **fields))
    monkeypatch.setattr(
        shared_module, "load_resolved", lambda config: Experiment(config, toy_dataset(whole))
    )
    monkeypatch.setattr(shared_module, "drawing_of", lambda experiment: None)
    monkeypatch.setattr(
        shared_module, "federate", lambda one, *_: toy_host(whole)[1] if one.host else whole
    )
    if large is not None:
        monkeypatch.setattr(residence_module, "_too_large", lambda size: large)
    return shared.program(config)


@pytest.mark.promise
@pytest.mark.thorough
def test_the_next_block_is_brought_while_one_computes(monkeypatch):
    run = prepared(monkeypatch)
    asked = []
    monkeypatch.setattr(Feed, "_bring", lambda fed, drawn: asked.append(drawn) or int(drawn.first))
    with Feed(run.built, run.inputs.key) as feed:
        assert [feed.block(*block) for block in ((0, 2), (2, 2), (4, 1))] == [0, 2, 4]
        # Each once, and nothing after the last round.
        assert [(int(drawn.first), len(drawn.ids)) for drawn in asked] == [(0, 2), (2, 2), (4, 1)]
        assert feed.block(2, 2) == 2  # not what was expected: brought now
    assert (
        "examples stay on the host (1.78 kB, of which the source has loaded 640 B)"
        in feed.describe()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"prediction.predictors": "network,xclp", "data.client_test_fraction": 0.1},
            "names xclp, whose graph has all",
        ),
        pytest.param(
            {"method": "cbafed"},
            "cbafed looks at the examples of all clients",
            marks=pytest.mark.thorough,
        ),
        ({"method": "fedsem"}, "fedsem looks at the examples of all clients"),
    ],
)
def test_what_needs_all_examples_is_refused_and_left_on_the_device_by_auto(
    settings, message, monkeypatch
):
    with pytest.raises(
        ConfigError, match=f"config.data.residence is 'host', but .*{message}.*residence=device"
    ):
        prepared(monkeypatch, **settings)
    monkeypatch.setattr(shared_module.one_shot, "check", lambda *given: None)
    assert (
        prepared(monkeypatch, large=True, residence="auto", **settings).built.experiment.host
        is None
    )


@pytest.mark.promise
@pytest.mark.thorough
def test_auto_goes_by_size(monkeypatch):
    assert prepared(monkeypatch, residence="auto").built.experiment.host is None
    # too large for another process: then all leave them on the host
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(runs.Team, "any", lambda team, here: not here)
        assert prepared(monkeypatch, residence="auto").built.experiment.host is not None
    # the examples have 1,776 bytes
    monkeypatch.setattr(residence_module.processor, "memory", lambda: 3000)
    assert prepared(monkeypatch, residence="auto").built.experiment.host is not None


@pytest.mark.thorough
def test_the_function_of_a_key_brings_examples_too():
    both = [
        make_train(experiment(residence=where))(jax.random.key(3)) for where in ("host", "device")
    ]
    (state, metrics), (other, others) = both
    np.testing.assert_array_equal(metrics["test_loss"], others["test_loss"])
    jax.tree.map(np.testing.assert_array_equal, state.params, other.params)
    with pytest.raises(ConfigError, match="without jit or vmap"):
        train = make_train(experiment())
        jax.jit(train)(jax.random.key(3), {}, train.draw(jax.random.key(3)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    # that share the cohort of 3; those of one device have all clients', the others their own
    ("method", "devices"),
    [
        *(("fedavg", 1), ("fixmatch", 3), ("fedmatch", 3), ("semifl", 3), ("xclp", 1), ("xclp", 3)),
        *(("protofssl", 3), ("mixed", 3), ("fedul", 1), ("fedrep", 3), ("fedrgd", 2)),
    ],
)
def test_a_run_has_the_bits_of_one_on_the_device(method, devices, tmp_path):
    # Five rounds in blocks of two end in a block of one, another program: one method shows it.
    fields = {"federated.devices": devices, "rounds": 5 if method == "fedavg" else 4}
    for where in data.RESIDENCES[1:]:
        run(experiment(method, where, **fields), tmp_path / where)
    assert rows_of(tmp_path / "device") == rows_of(tmp_path / "host")
    jax.tree.map(
        np.testing.assert_array_equal, state_of(tmp_path / "device"), state_of(tmp_path / "host")
    )


@pytest.mark.thorough
def test_a_run_goes_on_with_its_examples_elsewhere(tmp_path):
    run(experiment(residence="device", rounds=4), tmp_path / "whole")
    run(experiment(residence="device", rounds=2), tmp_path / "parts")
    run(experiment(residence="host", rounds=4), tmp_path / "parts")
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "parts")


@pytest.mark.thorough
def test_a_device_has_room_for_its_share_in_all_rounds(monkeypatch):
    """Where everybody who has labels takes part, their actual shares tell; else the largest
    clients of two rounds.
    """
    mesh = Mesh(np.array(jax.devices()[:3]), ("clients",))
    for cohort, width in ((None, 17), (3, 26)):
        run = prepared(monkeypatch, **{"federated.cohort_size": cohort, "federated.devices": 3})
        federation = runs.share_out(run.inputs.federation, mesh)
        execution = run.built.execution._replace(mesh=mesh)
        built = run.built._replace(federation=federation, execution=execution)
        with Feed(built, run.inputs.key) as feed:
            there = [feed.block(*block) for block in ((0, 2), (2, 2))]
        assert {one.values.shape[:2] for one in there} == {(3, 61 + width)}
        assert (there[0].values is there[1].values) == (cohort is None)  # nothing is read twice
        assert ("while the next" in feed.describe()) == (cohort is not None)
        assert feed.held.startswith("the 3 devices of this process have the examples of ")
