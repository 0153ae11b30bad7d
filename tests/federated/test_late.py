"""Uploads that come late, a server that waits for a number of them, and a simulated clock."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import Facts, clock, lateness, participation
from fedjax_ssl.federated.late import Parcel, arrive, nothing_yet, split
from fedjax_ssl.federated.uploads import EVERYTHING, UploadTransform
from fedjax_ssl.testing import promises
from tests import toy

DATA = toy.federation(noise=1.0)
FACTS = Facts(num_clients=DATA.num_clients, cohort_size=DATA.num_clients, rounds=4)
KEY = jax.random.key(2)


def method_of(name: str = "fedavg", data=DATA, setup=None, settings=None, **given):
    setup = toy.setup(data, **(setup or {}))
    facts = Facts(data.num_clients, setup.cohort_size, None)
    late = {field: given.pop(field) for field in ("delay", "late", "buffer") if field in given}
    pace = {
        field: given.pop(field)
        for field in ("seconds_per_step", "seconds_per_byte", "deadline")
        if field in given
    }
    how = participation(
        facts,
        setup.local_epochs,
        **given,
        lateness=lateness(facts, **late),
        clock=clock(facts, **pace),
    )
    return methods.build(name, setup._replace(participation=how), **(settings or {}))


@pytest.mark.usefixtures("float64")
def test_uploads_arrive_after_their_delay_and_count_less() -> None:
    """Three clients upload 1, 2 and 4 in round 0, on time, a round late and three rounds late."""
    how = lateness(FACTS, delay=3)
    zero = jnp.zeros(())
    model = {"model": zero}
    state = nothing_yet(how, model, jnp.zeros(1))
    now = later = None
    for value, rounds in ((1.0, 0), (2.0, 1), (4.0, 3)):
        weight = jnp.ones(())
        parcel = Parcel(
            {"model": weight},
            {"model": jnp.asarray(value)},
            jnp.full(1, value),
            weight,
            {"model": weight, "": weight},
            jnp.int32(1),
        )
        parts = split(parcel, jnp.int32(rounds), how)
        if now is None:
            now, later = parts
        else:
            now, later = jax.tree.map(jnp.add, (now, later), parts)
    found = []
    nothing = jax.tree.map(jnp.zeros_like, (now, later))
    for number in range(5):
        step, state = arrive(how, state, *((now, later) if number == 0 else nothing))
        found.append((float(step.change["model"]), float(step.statistics[0]), int(step.number)))
    late, latest = 2 / np.sqrt(2), 4 / np.sqrt(4)
    expected = [(1, 1, 1), (late, late, 1), (0, 0, 0), (latest, latest, 1), (0, 0, 0)]
    np.testing.assert_allclose(found, expected)


@pytest.mark.usefixtures("float64")
def test_behind_a_buffer_staleness_counts_steps_of_the_server() -> None:
    """An upload of 1 is sent in each of six rounds; the one of round 0 comes four rounds late, when
    with K = 2 the server has stepped once, after round 2.
    """
    how = lateness(FACTS, delay=4, buffer=2)
    one = jnp.ones(())
    weights = {"model": one}
    parcel = Parcel(weights, weights, jnp.ones(1), one, {**weights, "": one}, jnp.int32(1))
    state = nothing_yet(how, weights, jnp.zeros(1))
    found = []
    for number in range(6):
        sent = split(parcel, jnp.int32(4 if number == 0 else 0), how)
        step, state = arrive(how, state, *sent)
        found.append((float(step.change["model"]), float(step.statistics[0]), int(step.number)))
    late = 1 + 1 + 2**-0.5
    expected = [(0, 0, 0), (0, 0, 0), (2, 2, 2), (0, 0, 0), (late, late, 3), (0, 0, 0)]
    np.testing.assert_allclose(found, expected)


def test_the_server_steps_once_as_many_uploads_lie_there() -> None:
    how = lateness(FACTS, buffer=5)
    one = jnp.ones(())
    weights = {"model": one, "": one}
    parcel = Parcel({"model": one}, {"model": one}, jnp.zeros(0), one, weights, jnp.int32(2))
    state = nothing_yet(how, {"model": one}, jnp.zeros(0))
    taken = []
    for _ in range(6):
        step, state = arrive(how, state, parcel, ())
        taken.append(int(step.number))
    assert taken == [0, 0, 6, 0, 0, 6]


def test_a_buffer_of_the_cohort_without_delay_is_fedavg_bit_for_bit() -> None:
    plain, _ = toy.train(methods.build("fedavg", toy.setup(DATA)), KEY, DATA, 2)
    buffered, infos = toy.train(method_of(buffer=DATA.num_clients - 1), KEY, DATA, 2)
    chex.assert_trees_all_equal(plain.params, buffered.params)
    # One client has no label and never trains.
    assert infos[0]["late_clients"] == 0 and infos[0]["clients"] == DATA.num_clients - 1


@pytest.mark.thorough
def test_a_round_late_is_the_round_before() -> None:
    """All updates of round 0 come in round 1: until then the model stands still."""
    method = method_of(delay=1)
    start, _ = toy.train(method, KEY, DATA, 0)
    states = [toy.train(method, KEY, DATA, rounds)[0] for rounds in (1, 2)]
    chex.assert_trees_all_equal(states[0].params, start.params)
    on_time, infos = toy.train(methods.build("fedavg", toy.setup(DATA)), KEY, DATA, 1)
    moved = jax.tree.map(lambda one, two: np.sqrt(2) * (two - one), start.params, states[1].params)
    expected = jax.tree.map(jnp.subtract, on_time.params, start.params)
    chex.assert_trees_all_close(moved, expected, atol=1e-6)
    assert toy.train(method, KEY, DATA, 1)[1][0]["late_clients"] == infos[0]["clients"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("xclp", {"delay": 2}, "config.participation.delay is for updates and batch statistics"),
        ("xclp", {"buffer": 2}, "but clients also send codes of their examples"),
        ("protofssl", {"delay": 2}, "clients also send what the term"),
    ],
)
def test_what_cannot_be_late_is_refused(name: str, given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        method_of(name, **given)


def test_optimizers_whose_reports_cannot_be_late_are_refused() -> None:
    for given in ({"delay": 1}, {"lost": 0.1, "weights": "fixed"}):
        with pytest.raises(ValueError, match="clients also send what the federated optimizer"):
            method_of(setup={"federated_optimizer": federated.scaffold()}, **given)
    for optimizer in (federated.local(), federated.grouped((3, 3))):
        with pytest.raises(ValueError, match="for clients that move one common model"):
            method_of(setup={"federated_optimizer": optimizer}, delay=1)


def test_transforms_of_a_rounds_sum_are_refused() -> None:
    def at_server(key, summed, context, state):
        return summed, state

    noise = UploadTransform("noise", at_server=at_server, covers=EVERYTHING)
    with pytest.raises(ConfigError, match="'noise' is for the sum of one; leave one of them out"):
        method_of(setup={"uploads": (noise,)}, buffer=3)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (lateness, {"delay": 1.5}, "delay has 1.5; rounds are whole numbers"),
        (lateness, {"delay": "beta:1:2"}, "give rounds: a number, uniform:LOW:HIGH or a file"),
        (lateness, {"delay": -1.0}, "delay is -1.0; it must be a number in [0, 10000]"),
        (lateness, {"delay": 5.0, "longest": 4}, "delay is 5.0, and longest 4; give longest=5"),
        (lateness, {"buffer": 0}, "buffer is 0; it must be a whole number of at least 1"),
        (clock, {"deadline": 3.0}, "deadline is 3.0 seconds, but clients take none"),
        (clock, {"seconds_per_step": -1.0}, "it must be a number of at least 0"),
    ],
)
def test_what_cannot_be_is_refused(make, given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(FACTS, **given)


def test_delays_are_whole_numbers_drawn_for_each_upload() -> None:
    how = lateness(FACTS, delay="uniform:1:3")
    ids = jnp.arange(300)
    first, second = (np.asarray(how.delay.of(KEY, jnp.int32(number), ids)) for number in (0, 1))
    assert set(first) == {1, 2, 3} and how.longest == 3
    assert (np.bincount(first.astype(int))[1:] > 70).all()
    assert not np.array_equal(first, second)


@pytest.mark.thorough
def test_who_is_not_there_by_the_deadline_is_lost() -> None:
    """A second a step: of the clients some take more than three."""
    method = method_of(seconds_per_step=1.0, seconds_per_byte=1e-3, deadline=4.0)
    _, infos = toy.train(method, KEY, DATA, 1)
    assert 0 < infos[0]["lost_clients"] < infos[0]["clients"]
    assert infos[0]["simulated_seconds"] == 4.0


@pytest.mark.thorough
def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    _, infos = toy.train(method_of(seconds_per_step=2.0), KEY, DATA, 1)
    batches = max(-(-labelled // 4) for labelled in toy.LABELLED)
    assert infos[0]["simulated_seconds"] == 2.0 * 2 * batches
    assert infos[0]["lost_clients"] == 0


def test_a_deadline_before_the_first_client_is_refused() -> None:
    """The fewest steps are two, and the model of 67 numbers goes both ways."""
    size = 2 * 4 * 67
    pace = {"seconds_per_step": 2.0, "seconds_per_byte": 1e-3}
    assert method_of(**pace, deadline=5.0).check(DATA) == []
    message = f"deadline is 4.5 seconds; the fastest client takes {4 + size / 1000:g} (2 local"
    with pytest.raises(ConfigError, match=re.escape(message)):
        method_of(**pace, deadline=4.5).check(DATA)
    assert method_of(seconds_per_step="lognormal:9:1", deadline=1.0).check(DATA) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "settings", "optimizer"),
    [
        ("fedavg", {}, federated.fedavg()),
        ("fedavg", {}, federated.scaffold()),
        ("xclp", {"num_bits": 64, "num_neighbors": 3}, federated.fedavg()),
        ("protofssl", {}, federated.fedavg()),
        ("fedmatch", {"l2_weight": 0.1, "lr_schedule": "none"}, federated.fedavg()),
        ("cbafed", {}, federated.fedavg()),
    ],
)
def test_the_clock_counts_the_bytes_that_the_log_counts(name, settings, optimizer) -> None:
    """With one client a round, the last one's seconds are those of the round."""
    setup = {
        "cohort_size": 1,
        "augment": toy.jitter,
        "strong_augment": toy.jitter,
        "federated_optimizer": optimizer,
    }
    _, infos = toy.train(method_of(name, DATA, setup, settings, seconds_per_byte=1.0), KEY, DATA, 3)
    for info in infos:
        assert info["simulated_seconds"] == info["bytes_down"] + info["bytes_up"] > 0


@pytest.mark.thorough
def test_a_chain_that_changes_nothing_changes_nothing_of_what_is_late() -> None:
    nothing = UploadTransform(
        "nothing", at_client=lambda key, upload, *_: upload, covers=EVERYTHING
    )
    given = {"delay": 1, "late": 0.5, "buffer": 3}
    plain, _ = toy.train(method_of(**given), KEY, DATA, 3)
    chained, _ = toy.train(method_of(setup={"uploads": (nothing,)}, **given), KEY, DATA, 3)
    chex.assert_trees_all_close(plain.params, chained.params, atol=1e-6)
    chex.assert_trees_all_close(plain.late.coming, chained.late.coming, atol=1e-6)


def test_a_deadline_and_inverse_weights_are_refused() -> None:
    pace = clock(FACTS, seconds_per_step=1.0, deadline=3.0)
    with pytest.raises(ValueError, match="nobody knows that of missing the deadline"):
        participation(FACTS, lost=0.1, weights="inverse", clock=pace)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "given", "settings"),
    [
        ("fedavg", {"delay": "uniform:1:2", "late": 0.4, "buffer": 4}, {}),
        ("semifl", {"delay": 1, "late": 0.3}, {"threshold": 0.5}),
        ("xclp", {"seconds_per_step": "lognormal:1:0.5", "deadline": 4.0},
         {"num_bits": 256, "num_neighbors": 3}),
    ],
)  # fmt: skip
def test_late_clients_keep_the_promises(name: str, given: dict, settings: dict) -> None:
    def build(data, **changes) -> federated.Method:
        changes = {"augment": toy.jitter, **changes}
        return method_of(name, data, changes, settings, **given)

    trial = promises.trial_of(build, promises.Special())
    assert sum(info.get("late_clients", 0) + info["lost_clients"] for info in trial.infos) > 0
    for promise in (
        promises.state_keeps_its_types_and_rounds_compile_once,
        promises.same_key_same_bits_other_key_other_result,
        promises.order_of_storage_does_not_matter,
        promises.resume_is_bit_exact,
        promises.keys_placement_and_padding_do_not_matter,
        promises.lanes_train_every_client_as_if_alone,
    ):
        promise(trial)
