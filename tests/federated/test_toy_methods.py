"""A toy method for everything that the contract has to be able to say; each would fail without that
part of it.

Most learn one number: `pull(target)` moves a parameter by exactly the learning rate times its
distance from a target.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated
from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Broadcast,
    FederatedOptimizer,
    ForLog,
    Method,
    ParameterGroups,
    Recipe,
    Sampler,
    Schedule,
    Stage,
    Term,
    Traffic,
    Training,
    View,
    build,
    sample_cohort,
)
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.models import Model, Outputs
from tests import toy

KEY = jax.random.key(3)


def numbers_model(**start: float) -> Model:
    """A network that is nothing but these numbers."""

    def apply(params, state, inputs, *, train, key=None, mask=None):
        logits = inputs[:, : toy.NUM_CLASSES] + sum(params.values())
        return Outputs(logits, inputs, None), state

    return Model(
        lambda key: ({name: jnp.asarray(value) for name, value in start.items()}, {}), apply
    )


def looking(stream: str = "all") -> View:
    return View(stream, stream, lambda key, streams: streams[stream].inputs)


def pull(
    name: str, target: Callable[..., Any], group: str = "model", number: str = "w", **fields: Any
) -> Term:
    """Moves params[number] towards target(step)."""

    def loss(step):
        return 0.5 * (step.params[number] - jax.lax.stop_gradient(target(step))) ** 2

    return Term(name, (looking(),), loss, group=group, **fields)


def own_id(step) -> jax.Array:
    return step.client.id.astype(float)


def method_of(
    data, *terms: Term, start: dict[str, float] | None = None, steps: int = 1, **more: Any
) -> Method:
    """One stage of these terms, one step a round with the whole batch; every group of parameters
    is one number.
    """
    fields = {name: more.pop(name) for name in Stage._fields if name in more}
    options = {}
    training = {name: more.pop(name) for name in Training._fields if name in more}
    start = start or {"w": 0.0}
    private = more.pop("private", ())
    around = more.pop("around", lambda recipe: recipe)
    setup = toy.setup(
        data, model=numbers_model(**start), learning_rate=more.pop("learning_rate", 0.5), **more
    )
    stage = Stage(
        Training(terms, **{"sampler": toy.in_order("all", 4, steps), **training}),
        **{"labelled_quota": "any", **fields},
    )
    if len(start) == 1:
        options["groups"] = ParameterGroups(private=private)
    else:
        options["groups"] = ParameterGroups(
            tuple(start),
            private,
            split=lambda params: {name: {name: value} for name, value in params.items()},
            combine=lambda groups: {name: groups[name][name] for name in start},
        )
    return build(around(Recipe(setup, (stage,), **options)))


def after(method: Method, data, rounds: int = 1):
    return toy.train(method, KEY, data, rounds)


def number(state, name: str = "w") -> float:
    (value,) = (group[name] for group in state.params.values() if name in group)
    return float(value)


# 1. State of a client that lives on.


@pytest.mark.promise
@pytest.mark.thorough
def test_private_parameters_are_trained_where_they_are_and_never_averaged(float64) -> None:
    """FedRep: a shared number and a head per client; of six clients, three take part in a round."""
    data = toy.federation()
    terms = pull("body", own_id, "w"), pull("head", own_id, "head", "head")
    method = method_of(
        data, *terms, start={"w": 0.0, "head": 1.0}, private=("head",), cohort_size=3
    )
    state, infos = after(method, data, 2)
    shared = 0.0
    heads = np.ones(6)
    drawn = set()
    for number_of_round in range(2):
        round_key = jax.random.fold_in(named_key(KEY, "round"), number_of_round)
        cohort = sample_cohort(
            named_key(round_key, "cohort"), data.num_labelled, data.num_examples, 3, "any"
        )
        ids = np.asarray(cohort.ids)
        heads[ids] += 0.5 * (ids - heads[ids])
        shared += 0.5 * np.mean(ids - shared)
        drawn |= set(ids)
    assert 3 < len(drawn) < 6, "some took part once, some never"
    np.testing.assert_allclose(np.ravel(state.clients.params["head"][0]), heads, rtol=1e-12)
    assert number(state, "w") == pytest.approx(shared) and number(state, "head") == 1.0
    assert infos[0]["bytes_up"] == 3 * 4  # the shared number alone


@pytest.mark.promise
@pytest.mark.thorough
def test_the_local_optimizer_goes_on_where_the_client_left_it(float64) -> None:
    """One client with momentum: two rounds of three steps are one round of six."""
    data = toy.only(toy.federation(), 0)
    local = {"local_optimizer": federated.local_optimizer(momentum=0.9), "learning_rate": 0.1}
    terms = (pull("pull", lambda step: jnp.asarray(2.0)),)
    twice, _ = after(method_of(data, *terms, steps=3, keep_optimizer=True, **local), data, 2)
    once, _ = after(method_of(data, *terms, steps=6, **local), data)
    anew, _ = after(method_of(data, *terms, steps=3, **local), data, 2)
    assert number(twice) == pytest.approx(number(once), rel=1e-12)
    assert abs(number(anew) - number(once)) > 1e-3


@pytest.mark.promise
@pytest.mark.thorough
def test_terms_remember_what_a_client_had_and_dropped_clients_forget_nothing() -> None:
    """Rounds that a client took part in, counted at the client; the server reads the counts by
    cohort.
    """
    data = toy.federation()
    counting = Term(
        "counting",
        (looking(),),
        lambda step: jnp.sum(step.inputs["all"]) * 0.0 + 0.0 * step.params["w"],
        server=AtServer(
            init=lambda *_: jnp.zeros(6),
            server_update=lambda state, outcome: outcome.context.clients.kept.terms["counting"],
        ),
        client=AtClient(
            keep=lambda params, model_state, client: jnp.zeros(()),
            remember=lambda trained: trained.client.kept.terms["counting"] + 1.0,
        ),
    )
    method = method_of(data, counting)
    state, _ = after(method, toy.with_broken_client(data, 1), 3)
    np.testing.assert_array_equal(state.clients.terms["counting"], [3, 0, 3, 3, 3, 3])
    np.testing.assert_array_equal(state.terms["counting"], [2, 0, 2, 2, 2, 2])


# 2, 4, 5. What a client starts from, the server as a member, and federated optimizers that draw.


def grouped(num_groups: int) -> FederatedOptimizer:
    """FedRGD in small: every slot starts from the model of its group; groups are averaged with
    their server replica.
    """

    def group_of(turn):
        order = jax.random.permutation(turn.key, turn.valid.shape[0])
        others = turn.slots.shape[0] - turn.valid.shape[0]
        return jnp.concatenate([order % num_groups, jnp.arange(others)])

    def send(state, kept, turn):
        return {"group": group_of(turn), "is_server": turn.slots >= turn.valid.shape[0]}

    def start(state, received, common):
        own = jax.tree.map(lambda x: x[received["group"]], state)
        return jax.tree.map(
            lambda mine, all: jnp.where(received["is_server"], all, mine), own, common
        )

    def add(local, reported):
        mine = jax.nn.one_hot(local.sent_by_optimizer["group"], num_groups)
        totals = jax.tree.map(lambda w: mine.reshape(-1, *[1] * w.ndim) * w, local.params)
        return local.weights, totals, mine

    def apply(state, anchor, summed, turn):
        means = jax.tree.map(
            lambda t: t / summed.reported.reshape(-1, *[1] * (t.ndim - 1)), summed.update
        )
        return jax.tree.map(lambda x: x.mean(0), means), means

    def many(params):
        return jax.tree.map(lambda w: jnp.stack([w] * num_groups), params)

    return FederatedOptimizer(many, apply, send=send, start=start, add=add)


@pytest.mark.promise
@pytest.mark.thorough
def test_groups_start_from_their_own_model_and_mix_through_the_server_alone(float64) -> None:
    """FedRGD's mixing rate: with two groups of 3 and a replica each, a gap shrinks by 3 / 4 a
    round; the mean stays.
    """
    data = toy.federation(server=4)
    still = pull("still", lambda step: step.params["w"])
    at_server = Term("server", (looking(),), lambda step: 0.0 * step.params["w"])
    method = method_of(
        data,
        still,
        server=Training((at_server,), toy.in_order("all", 4, 1)),
        when=("beside",),
        replicas=2,
        federated_optimizer=grouped(2),
    )
    state = jax.jit(method.init)(KEY, data)
    (models,) = state.optimizer["model"]
    state = state._replace(optimizer={"model": (models + jnp.asarray([[0.0], [6.0]]),)})
    state = state._replace(params={"model": {"w": jnp.asarray(3.0)}})
    one_round = jax.jit(method.round)
    gaps = []
    for _ in range(3):
        state, info = one_round(KEY, state, data)
        gaps.append(float(jnp.diff(jnp.ravel(state.optimizer["model"][0]))[0]))
        assert number(state) == pytest.approx(3.0)
    np.testing.assert_allclose(gaps, [6 * 0.75, 6 * 0.75**2, 6 * 0.75**3], rtol=1e-12)
    assert float(info["server_loss"]) == 0.0 and int(info["clients"]) == 6


@pytest.mark.promise
@pytest.mark.thorough
def test_uploads_may_decide_how_much_a_client_weighs(float64) -> None:
    """(FL)^2: weights 1 - tau; worked example tau = .9, .6, .5 of three clients with 2, 0, 1."""
    data = toy.federation(sizes=(4, 4, 4), labelled=(4, 4, 4))
    targets = jnp.asarray([2.0, 0.0, 1.0])
    tau = jnp.asarray([0.9, 0.6, 0.5])
    term = pull("pull", lambda step: targets[step.client.id])
    term = term._replace(client=AtClient(collect=lambda trained: tau[trained.client.id]))
    method = method_of(
        data, term, weigh=lambda client, uploads: 1.0 - uploads["pull"], learning_rate=1.0
    )
    state, _ = after(method, data)
    assert number(state) == pytest.approx(0.7, rel=1e-12)


# 3. Prediction for a client.


@pytest.mark.promise
@pytest.mark.thorough
def test_every_client_is_scored_on_its_own_examples_by_its_own_model() -> None:
    data = toy.federation(num_test=30)
    owner = jnp.asarray([0] * 5 + [2] * 20 + [4] * 3 + [-1] * 2, jnp.int32)
    data = toy.dataclasses.replace(data, test_client=owner)
    model = toy.linear_model()
    run = toy.setup(data, model=model)
    weights = supervised_term(run)._replace(group="w")
    stage = Stage(
        Training((weights, weights._replace(name="b", group="b")), toy.in_order("labelled", 4, 3)),
        labelled_quota="any",
    )
    method = build(
        Recipe(
            run,
            (stage,),
            ParameterGroups(
                ("w", "b"),
                private=("b",),
                split=lambda params: {name: {name: value} for name, value in params.items()},
                combine=lambda groups: {**groups["w"], **groups["b"]},
            ),
        )
    )
    state, _ = after(method, data, 2)
    found = jax.jit(lambda state: federated.evaluate(method, state, data))(state)[
        "test_client_accuracy"
    ]
    rows = np.asarray(data.test_index)
    shares = []
    for client in (0, 2, 4):
        mine = rows[np.asarray(owner) == client]
        scores = method.predict_for(state, jnp.asarray(client), data.inputs[mine])
        shares.append(np.mean(np.argmax(scores, 1) == np.asarray(data.labels)[mine]))
    assert float(found) == pytest.approx(np.mean(shares), rel=1e-6)


# 4. The server trains before, after or both, and its optimizer may live on.


TO_TEN = pull("server", lambda step: jnp.asarray(10.0))
TO_ZERO = pull("clients", lambda step: jnp.asarray(0.0))


@pytest.mark.promise
@pytest.mark.thorough
def test_the_server_trains_before_and_after_the_clients(float64) -> None:
    """Every training halves the distance: 4 -> 2 at the clients, and towards 10 at the server."""
    data = toy.federation(server=4)
    server = Training((TO_TEN,), toy.in_order("all", 4, 1))
    both = {"server": server, "when": ("before", "after")}
    assert number(after(method_of(data, TO_ZERO, **both, start={"w": 4.0}), data)[0]) == 6.75


@pytest.mark.thorough
def test_the_server_goes_on_with_its_momentum(float64) -> None:
    data = toy.federation(server=4)
    momentum = {"local_optimizer": federated.local_optimizer(momentum=0.5), "learning_rate": 0.1}
    silent = toy.without(data, *range(6))

    def server_alone(rounds: int, steps: int, keep: bool) -> float:
        server = Training((TO_TEN,), toy.in_order("all", 4, steps))
        method = method_of(silent, TO_ZERO, server=server, keep_server_optimizer=keep, **momentum)
        return number(after(method, silent, rounds)[0])

    assert server_alone(2, 2, True) == pytest.approx(server_alone(1, 4, False), rel=1e-12)
    assert abs(server_alone(2, 2, False) - server_alone(1, 4, False)) > 1e-3


# 6. What is sent.


@pytest.mark.promise
@pytest.mark.thorough
def test_uploads_may_lose_something_and_bytes_are_those_of_what_was_sent(float64) -> None:
    """Differences of at most 1 are not sent, and the server keeps its own value there; a number
    sent takes 8 bytes.
    """
    data = toy.federation(sizes=(4, 4, 4), labelled=(4, 4, 4))
    targets = jnp.asarray([1.0, 4.0, 10.0])

    def at_client(key, upload, trained, state):
        update = jax.tree.map(lambda moved: jnp.where(abs(moved) > 1.0, moved, 0.0), upload.update)
        return upload._replace(update=update, terms={"pull": update["model"][0] != 0})

    def traffic(outcome):
        return Traffic(
            federated.count(0), federated.count(jnp.sum(outcome.uploads), 8), model_up=False
        )

    term = pull("pull", lambda step: targets[step.client.id])
    empty = AtClient(collect=lambda trained: jnp.zeros(1, bool))
    term = term._replace(client=empty, log=ForLog(traffic=traffic))
    uploads = (UploadTransform("large", at_client=at_client),)
    state, infos = after(method_of(data, term, uploads=uploads), data)
    assert number(state) == pytest.approx((0.0 + 2.0 + 5.0) / 3)
    assert infos[0]["bytes_up"] == 2 * 8 and infos[0]["bytes_down"] == 3 * 4


# 7. Diagnostics see uploads and the aggregate, and change nothing.


@pytest.mark.promise
@pytest.mark.thorough
def test_gradient_diversity_is_measured_and_reaches_nothing(float64) -> None:
    """1/n sum ||v_i||^2 / ||mean v||^2 of the clients' changes 0.5 id: 2.2 for ids 0 to 5 (mean
    1.25).
    """
    data = toy.federation()

    def measure(trained):
        return (trained.groups["model"]["w"] - trained.start_params["model"]["w"]) ** 2

    def diagnose(outcome, truth, measured):
        mean = outcome.after.params["model"]["w"] - outcome.before.params["model"]["w"]
        return {"diversity": jnp.mean(measured, where=outcome.counts) / mean**2}

    plain = pull("pull", own_id)
    logged = plain._replace(log=ForLog(measure, diagnose))
    state, infos = after(method_of(data, logged), data)
    expected, _ = after(method_of(data, plain), data)
    chex.assert_trees_all_equal(state, expected)
    assert infos[0]["diversity"] == pytest.approx(
        np.mean((0.5 * np.arange(6)) ** 2) / 1.25**2, rel=1e-12
    )


# 8. Batches know the round; a group without a row takes no step.


@pytest.mark.promise
@pytest.mark.thorough
def test_streaming_parts_follow_the_round_and_a_group_without_rows_stands_still() -> None:
    """Round r uses part r of a client's data; number v has rows only in even steps, and weight
    decay all the time.
    """
    data = toy.federation(sizes=(6, 6), labelled=(6, 6))

    def schedule(key, client, now):
        part = jnp.broadcast_to(now.number * 2 + jnp.arange(2, dtype=jnp.int32), (2, 2))
        even = jnp.asarray([[True, True], [False, False]])
        last = jnp.asarray(now.number == 2)
        masks = {"all": ~even, "some": even & ~last}
        return Schedule({"all": part, "some": part}, masks, jnp.asarray(2, jnp.int32))

    seen = pull(
        "seen", lambda step: jnp.mean(step.streams["all"].position.astype(jnp.float32)), "w"
    )
    nothing = Term("some", (looking("some"),), lambda step: 0.0 * step.params["v"], group="v")
    decaying = federated.local_optimizer(momentum=0.9, weight_decay=0.5)
    method = method_of(
        data,
        seen,
        nothing,
        start={"w": 0.0, "v": 1.0},
        sampler=Sampler(schedule),
        local_optimizer=decaying,
        rounds=3,
    )
    state = jax.jit(method.init)(KEY, data)
    one_round = jax.jit(method.round)
    # one step of decay in each round but the last, which has no row
    for expected_v in (0.75, 0.75**2, 0.75**2):
        before = number(state)
        state, _ = one_round(KEY, state, data)
        position = 2 * (int(state.round) - 1) + 0.5
        slope = before - position + 0.5 * before
        assert number(state) == pytest.approx(before - 0.5 * slope, rel=1e-6)
        assert number(state, "v") == pytest.approx(expected_v, rel=1e-6)


# 9. Views of mixtures.


@pytest.mark.promise
@pytest.mark.thorough
def test_a_view_may_draw_on_two_streams_and_say_which_rows_are_real() -> None:
    data = toy.federation(sizes=(6, 6), labelled=(6, 6))

    def schedule(key, client, now):
        slots = jnp.arange(4, dtype=jnp.int32)[None]
        masks = {"first": slots < 3, "second": slots % 2 == 0}
        return Schedule({"first": slots, "second": 5 - slots}, masks, jnp.asarray(1, jnp.int32))

    def mixture(key, streams):
        return 0.25 * streams["first"].inputs + 0.75 * streams["second"].inputs

    both = View(
        "mix", "first", mixture, mask=lambda streams: streams["first"].mask & streams["second"].mask
    )
    masks: list[Any] = []
    model = toy.linear_model()

    def apply(params, state, inputs, *, train, key=None, mask=None):
        masks.append(mask)
        return model.apply(params, state, inputs, train=train, key=key, mask=mask)

    def loss(step):
        first, second = (
            data.inputs[step.client.rows[jnp.asarray(rows)]] for rows in ([0, 2], [5, 3])
        )
        expected = 0.25 * first + 0.75 * second
        wrong = jnp.sum(jnp.abs(step.inputs["mix"][jnp.asarray([0, 2])] - expected))
        real = jnp.sum(both.real(step.streams) != jnp.asarray([True, False, True, False])).astype(
            jnp.float32
        )
        return wrong + real + 0.0 * jnp.sum(step.outputs["mix"].logits)

    run = toy.setup(data, model=Model(model.init, apply))
    method = build(
        Recipe(
            run,
            (
                Stage(
                    Training((Term("mix", (both,), loss),), Sampler(schedule)), labelled_quota="any"
                ),
            ),
        )
    )
    _, infos = after(method, data)
    assert infos[0]["loss"] == pytest.approx(0.0, abs=1e-6) and masks[0].shape == (4,)


# 11. Steps of another kind.


@pytest.mark.promise
@pytest.mark.thorough
def test_a_step_sees_the_model_that_was_received(float64) -> None:
    """Three steps, each by 1 away from the frozen copy: 0 -> 1 -> 2 -> 3 only if the copy stays
    where it was.
    """
    data = toy.federation()

    def target(step):
        return step.start_network.params["w"] + step.number + 1.0

    state, _ = after(method_of(data, pull("away", target), steps=3, learning_rate=1.0), data, 2)
    assert number(state) == 6.0


@pytest.mark.promise
@pytest.mark.thorough
def test_a_weight_of_zero_keeps_what_was_learned_and_one_that_is_no_number_drops_the_client(
    float64,
) -> None:
    """Client 0 weighs nothing and still trains its own head; client 1 weighs NaN and is dropped
    with all it has.
    """
    data = toy.federation()
    terms = pull("body", own_id, "w"), pull("head", lambda step: jnp.asarray(2.0), "head", "head")
    weights = jnp.asarray([0.0, jnp.nan, 1.0, 1.0, 1.0, 1.0])
    more = {
        "start": {"w": 0.0, "head": 0.0},
        "private": ("head",),
        "weigh": lambda client, _: weights[client.id],
    }
    state, infos = after(method_of(data, *terms, **more), data)
    np.testing.assert_array_equal(np.ravel(state.clients.params["head"][0]), [1, 0, 1, 1, 1, 1])
    assert (
        number(state, "w") == pytest.approx(0.5 * np.mean([2, 3, 4, 5]))
        and infos[0]["dropped_clients"] == 1
    )


@pytest.mark.thorough
def test_private_parameters_do_not_depend_on_placement_devices_or_seeds_at_once() -> None:
    data = toy.federation()
    terms = pull("body", own_id, "w"), pull("head", own_id, "head", "head")
    scaffold = {"federated_optimizer": federated.scaffold(), "keep_optimizer": True}
    method = method_of(
        data, *terms, start={"w": 0.0, "head": 1.0}, private=("head",), cohort_size=4, **scaffold
    )
    expected, _ = after(method, data, 2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    shared, _ = after(toy.executed(method, mesh=mesh, placement="lanes", chunk_size=2), data, 2)
    chex.assert_trees_all_close(shared, expected, rtol=1e-6)
    restored = jax.tree.map(jnp.asarray, jax.device_get(expected))
    chex.assert_trees_all_equal(
        toy.run(jax.jit(method.round), KEY, restored, data, 1)[0], after(method, data, 3)[0]
    )


@pytest.mark.promise
@pytest.mark.thorough
def test_an_epoch_goes_over_what_a_round_chose() -> None:
    """A term chooses examples before the round; the sampler walks through these alone."""
    data = toy.federation(sizes=(6, 4), labelled=(6, 4))

    def prepare(state, context):
        chosen = jnp.arange(context.clients.rows.shape[1]) % 2 == 0
        return Broadcast(own=jnp.broadcast_to(chosen, context.clients.rows.shape)), state

    def schedule(key, client, now):
        place = jnp.arange(client.rows.shape[0], dtype=jnp.int32)
        chosen = client.sent["choose"] & (place < client.num_examples)
        order = jnp.argsort(~chosen, stable=True).astype(jnp.int32)[:, None]
        return Schedule({"all": order}, {"all": chosen[order]}, jnp.sum(chosen, dtype=jnp.int32))

    odd = Term(
        "choose",
        (looking(),),
        lambda step: (
            (step.streams["all"].position[0] % 2).astype(jnp.float32) + 0.0 * step.params["w"]
        ),
        server=AtServer(prepare=prepare),
    )
    _, infos = after(method_of(data, odd, sampler=Sampler(schedule, reads_sent=True)), data)
    assert infos[0]["loss"] == 0.0 and infos[0]["local_steps"] == infos[0]["examples"] == 3 + 2


# 12. Small things.


@pytest.mark.promise
@pytest.mark.thorough
def test_a_term_of_an_unknown_group_is_refused() -> None:
    data = toy.federation()
    with pytest.raises(
        ValueError, match=r"term 'pull' moves parameter group 'psi'.*groups are model"
    ):
        method_of(data, pull("pull", own_id, "psi"))
    with pytest.raises(ValueError, match=r"private groups are head; the method's groups are model"):
        method_of(data, pull("pull", own_id), private=("head",))


@pytest.mark.promise
@pytest.mark.thorough
def test_a_method_of_two_stages_traces_each_once() -> None:
    data = toy.federation()
    traced = []

    def counted(step):
        traced.append(step.now)
        return 0.0 * step.params["w"]

    setup = toy.setup(data, model=numbers_model(w=0.0))
    sampler = toy.in_order("all", 4, 1)
    logged = ForLog(diagnose=lambda outcome, truth, measured: {"second": jnp.zeros(())})
    first = Stage(
        Training((Term("one", (looking(),), counted),), sampler), labelled_quota="any", rounds=1
    )
    second = Stage(
        Training((Term("two", (looking(),), counted, log=logged),), sampler), labelled_quota="any"
    )
    after(build(Recipe(setup, (second,))), data, 2)
    alone = len(traced)
    _, infos = after(build(Recipe(setup, (first, second))), data, 2)
    assert np.isnan(infos[0]["second"]) and infos[1]["second"] == 0.0
    assert len(traced) == 3 * alone
