"""`federate`: holds examples out, deals the others to clients and hides labels, all as one traceable draw."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data.dataset import Dataset, with_pooled_splits
from fedjax_ssl.data.federation.dealing import count_groups
from fedjax_ssl.data.federation.federated_data import FederatedData
from fedjax_ssl.data.federation.held_out import HeldOut, balanced_test_examples, clients_of_own_test, stratified
from fedjax_ssl.data.federation.host_inputs import HostInputs, load_examples
from fedjax_ssl.data.federation.names import natural_names
from fedjax_ssl.data.federation.partition import PARTITIONS
from fedjax_ssl.data.federation.pool import Facts, Partition, Pool
from fedjax_ssl.data.federation.streaming import in_parts
from fedjax_ssl.data.federation.supervision import Supervision, balanced_draw, build_supervision
from fedjax_ssl.data.federation.weak_labels import Entries, Holdings, OwnWeakLabels, WeakLabels, shares_of_sets
from fedjax_ssl.keys import named_key
from fedjax_ssl.registry import did_you_mean


class _Plan(NamedTuple):
    """Everything about a federation but its key and arrays."""

    facts: Facts
    partition: Partition
    supervision: Supervision
    held_out: HeldOut
    max_test: int  # bounds for every key, of what is held out of the training examples
    max_valid: int
    num_train: int  # examples of the dataset's own training split


class _Widths(NamedTuple):
    """Static sizes of the tables."""

    max_labelled: int
    max_unlabelled: int
    examples: int
    test: int
    valid: int
    server: int
    min_labelled: int = 1  # of a client that has any


class _Roles(NamedTuple):
    """What every training example is used for."""

    holder: Int[Array, " N"]  # that has it, for training or as a test example; -1 = nobody
    entries: Entries  # the examples as clients train on them
    weak: WeakLabels | None
    test: Bool[Array, " N"]
    valid: Bool[Array, " N"]
    server: Bool[Array, " N"]


def federate(
    key: Key[Array, ""],
    dataset: Dataset,
    *,
    partition: str = "natural",
    num_clients: int | None = None,
    partition_options: Mapping[str, Any] | None = None,
    supervision: str = "per_client",
    supervision_options: Mapping[str, Any] | None = None,
    test_clients: int = 0,
    left_out_client: int | str | None = None,
    test_fraction: float = 0.0,
    client_test_fraction: float = 0.0,
    validation_fraction: float = 0.0,
    balanced_test: bool = False,
    pools: tuple[int, int, int] | None = None,
    shuffle_pools: bool = False,
    inputs: Array | HostInputs | None = None,
    widest: float = 1.0,
) -> FederatedData:
    """Holds examples out, deals the others to clients and hides labels.

    Pure in `key`, and traceable: `jax.jit(jax.vmap(lambda k: federate(k, dataset, ...)))(keys)` draws one
    federation per key. With a concrete key the tables are as narrow as the data; under a trace they take the
    width that every key fits in, and the content is the same.

    The test set is the dataset's own, unless one of `test_clients`, `left_out_client`, `test_fraction` and
    `client_test_fraction` asks for another one, which is then taken from the training examples instead.
    Validation examples and those of `test_fraction` always have a true label and are stratified by class.
    `test_client` says which client has a test example, as far as
    the partition tells: a natural client that only has test examples is numbered after the training clients.

    Args:
        key: typed PRNG key; decides held-out examples, partition and hidden labels, in independent streams.
        dataset: see `fedjax_ssl.data.load`.
        partition: a name of `PARTITIONS`.
        num_clients: number of training clients C; None: all natural clients that are not held out.
        partition_options: of the named partition.
        supervision: a name of `SUPERVISIONS`.
        supervision_options: of the named supervision, and `labelled_clients`, `which` for all of them.
        test_clients: number of natural clients, drawn by key, kept out of training; their examples are the test set.
        left_out_client: this natural client is kept out of training; all its examples, of both splits, are the test
            set. Its name, or its number, counted from 0 in the order of the dataset's clients.
        test_fraction: share of the labelled training examples that become the test set.
        client_test_fraction: share of each client's examples, drawn blindly, that become the test set.
        validation_fraction: share of the remaining labelled training examples that become the validation set.
        balanced_test: from the dataset's own test examples, each client draws its own, equally many of every class.
        pools: training, validation and test examples of every class, from the dataset's training and test examples
            together; what is left is unused, and all examples without a label are for training.
        shuffle_pools: all of a class are shuffled before they are cut into pools; otherwise the dataset's own training
            examples come first, so that the others are mostly test examples.
        inputs: of an earlier federation with other randomness and the same arguments, so that both share them; they
            may be traced, so that they are no constant of a program. `HostInputs` of the dataset stay where they are;
            the device gets those for evaluation and the server. The key is then a concrete one.
        widest: with a concrete key too, tables take the width that every key fits in where it is at most so many
            times what they need; keys then share their programs.

    Returns:
        The federation.

    Raises:
        ValueError: unknown names or options; more clients, labels or held-out data than there are.
    """
    num_train = len(dataset.train)
    if pools is not None:
        dataset = dataset if dataset.test is None else with_pooled_splits(dataset)
    natural = _natural_clients(dataset)
    natural_sizes = np.bincount(natural[natural >= 0])
    held_out = HeldOut(
        test_clients,
        _number_of(dataset, left_out_client),
        test_fraction,
        client_test_fraction,
        validation_fraction,
        balanced_test,
        pools,
        shuffle_pools,
    )
    held_out.check(dataset.name, len(natural_sizes))
    if partition == "natural" and not natural_sizes.size:
        raise ValueError(f"dataset {dataset.name!r} has no natural clients; choose another partition, such as 'iid'")
    if supervision == "given" and dataset.set_shares is not None and partition != "natural":
        raise ValueError(
            f"partition {partition!r} deals the examples anew, but supervision 'given' has class shares of the sets of "
            "the dataset's own clients; use partition 'natural'"
        )
    plan = _make_plan(
        dataset,
        natural_sizes,
        PARTITIONS.build(partition, **dict(partition_options or {})),
        _count_clients(partition, num_clients, len(natural_sizes) - held_out.num_natural),
        build_supervision(supervision, **dict(supervision_options or {})),
        held_out,
        num_train,
    )
    labels = jnp.asarray(dataset.train.y, jnp.int32)
    train, num_coarse = dataset.train, len(dataset.coarse_names or ())
    weak = OwnWeakLabels(train.coarse, num_coarse, dataset.correspondence, train.set, dataset.set_shares)
    draw = partial(_draw_roles, plan=plan, own=weak)
    # Compiled as a whole, since operation by operation a first start takes much longer (docs/design-notes.md).
    roles = jax.jit(draw)(key, labels, jnp.asarray(natural))
    # Asked of the result, not of the key: a fixed key inside somebody's jit also gives traced roles.
    traced = isinstance(roles.entries.client, jax.core.Tracer)
    widths = _static_widths(plan)
    if not traced:
        widths = _narrower(_measure(roles, plan.facts.num_clients), widths, widest)
    tables = _tabulate(roles, labels, num_clients=plan.facts.num_clients, widths=widths)
    examples, truth = [dataset.train.x], dataset.train.y
    num_new_clients, owned = held_out.num_natural, bool(held_out.num_natural or client_test_fraction)
    own = held_out.own_test_examples(dataset)
    if dataset.test is not None and own.size:
        test = _own_test_examples(key, dataset, own, plan, roles, by_name=partition == "natural")
        tables["test_index"] = jnp.concatenate([len(truth) + test.row, tables["test_index"]])
        tables["test_client"] = jnp.concatenate([test.client, tables["test_client"]])
        tables["num_test"] = tables["num_test"] + test.row.size  # all of these are real
        hidden = jnp.full(len(dataset.test), -1, jnp.int32)
        tables["observed"] = jnp.concatenate([tables["observed"], hidden])
        examples, truth = [*examples, dataset.test.x], np.concatenate([truth, dataset.test.y])
        num_new_clients, owned = num_new_clients + test.strangers, owned or test.owned
    federation = FederatedData(
        inputs=_on_device(examples) if inputs is None else cast(Array, inputs),
        labels=jnp.asarray(truth, jnp.int32),
        num_classes=dataset.num_classes,
        num_new_clients=num_new_clients,
        max_labelled=widths.max_labelled,
        max_unlabelled=widths.max_unlabelled,
        min_labelled=widths.min_labelled,
        num_parts=plan.partition.parts,
        rounds_per_part=plan.partition.rounds_per_part,
        coarse_names=_coarse_names(plan.supervision, dataset),
        owned_test=owned,
        **tables,
    )
    if isinstance(inputs, HostInputs):
        return dataclasses.replace(federation, inputs=cast(Array, load_examples(inputs, federation)))
    return federation


class _OwnTest(NamedTuple):
    """Examples of the dataset's own test split that are tested on."""

    row: Int[Array, " t"]  # in that split
    client: Int[Array, " t"]  # that an example belongs to; -1 = none
    strangers: int  # clients that have test examples only
    owned: bool  # whether examples belong to clients


def _own_test_examples(
    key: Key[Array, ""],
    dataset: Dataset,
    own: Int[np.ndarray, " t"],
    plan: _Plan,
    roles: _Roles,
    *,
    by_name: bool,
) -> _OwnTest:
    """Which of the dataset's own test examples are tested on, and whose they are.

    Args:
        key: of the federation.
        dataset: with a test split.
        own: those of its test examples that were not held out otherwise.
        plan: of the federation.
        roles: of the training examples.
        by_name: whether the federation's clients are the dataset's own.
    """
    assert dataset.test is not None
    facts, held_out = plan.facts, plan.held_out
    if held_out.balanced_test:
        drawn = balanced_test_examples(named_key(key, "test"), dataset.test.y, facts.num_clients, dataset.num_classes)
        return _OwnTest(*drawn, 0, True)
    row, client, strangers = jnp.asarray(own, jnp.int32), jnp.full(own.size, -1, jnp.int32), 0
    if by_name or held_out.left_out_client is not None:
        taken = facts.num_clients + held_out.num_natural
        client, strangers = clients_of_own_test(dataset, own, roles.holder, taken)
    return _OwnTest(row, client, strangers, by_name and dataset.test.client is not None)


def _on_device(examples: list[np.ndarray]) -> Array:
    return jnp.asarray(examples[0] if len(examples) == 1 else np.concatenate(examples))


def _coarse_names(supervision: Supervision, dataset: Dataset) -> tuple[str, ...]:
    named = [rule.coarse_names(dataset.num_classes) for rule, _ in supervision.weak if rule.coarse_names is not None]
    return named[0] if named else (dataset.coarse_names or ())


def _natural_clients(dataset: Dataset) -> Int[np.ndarray, " N"]:
    """Natural client of every training example, numbered without gaps; -1 where the dataset has none."""
    if dataset.train.client is None:
        return np.full(len(dataset.train.y), -1, np.int32)
    return np.unique(dataset.train.client, return_inverse=True)[1].astype(np.int32)


def _number_of(dataset: Dataset, client: int | str | None) -> int | None:
    """The number of a natural client that is given by its name."""
    if not isinstance(client, str):
        return client
    names = natural_names(dataset)
    if client not in names:
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        hint = did_you_mean(client, names)
        raise ValueError(
            f"left_out_client={client!r}, but dataset {dataset.name!r} has no such client.{hint} Its clients: "
            f"{shown or 'none'}"
        )
    return names.index(client)


def _count_clients(partition: str, num_clients: int | None, num_natural: int) -> int:
    if num_clients is None:
        if partition != "natural":
            raise ValueError(
                f"partition {partition!r} does not know how many clients there are; set partition.num_clients"
            )
        return num_natural
    check_whole_numbers(num_clients=num_clients)
    if partition == "natural" and num_clients > num_natural:
        raise ValueError(f"num_clients={num_clients}, but only {num_natural} natural clients are left to train")
    return num_clients


def _make_plan(
    dataset: Dataset,
    natural_sizes: Int[np.ndarray, " G"],
    partition: Partition,
    num_clients: int,
    supervision: Supervision,
    held_out: HeldOut,
    num_train: int,
) -> _Plan:
    """Works out what holds for every key: how many examples are left to deal, at least and at most."""
    by_size = np.sort(natural_sizes)
    labels = dataset.train.y
    unlabelled = int((labels < 0).sum())
    class_counts = np.bincount(labels[labels >= 0], minlength=dataset.num_classes).astype(np.float64)
    max_test, max_valid = int(by_size[by_size.size - held_out.num_natural :].sum()), 0
    most = min(class_counts.sum(), float(len(labels) - by_size[: held_out.num_natural].sum()))
    least = max(class_counts.sum() - max_test, 0.0)

    def hold_out(share: float) -> int:
        # Stratified rounding is within one of the exact share per class, and the total within a half; the rest is
        # for float32.
        nonlocal class_counts, most, least
        held = int(most * share) + 2
        class_counts = np.minimum(class_counts, class_counts * (1 - share) + 2)
        most, least = most * (1 - share) + 1, max(least * (1 - share) - 1, 0.0)
        return held

    removed = 0
    if held_out.pools:
        train, valid, test = held_out.pools
        _check_pools(held_out.pools, class_counts)
        max_test, max_valid = test * dataset.num_classes, valid * dataset.num_classes
        removed = int(class_counts.sum()) - train * dataset.num_classes
        class_counts = np.full(dataset.num_classes, float(train))
        most = least = class_counts.sum()
    if held_out.test_fraction:
        max_test = hold_out(held_out.test_fraction)
    if held_out.validation_fraction:
        max_valid = hold_out(held_out.validation_fraction)
    if held_out.client_test_fraction:
        max_test = int(held_out.client_test_fraction * (most + unlabelled) + num_clients / 2) + 1
    if partition.again is not None and (supervision.weak or held_out.client_test_fraction):
        beside = "coarse labels or sets" if supervision.weak else "test examples of the clients (client_test_fraction)"
        raise ValueError(f"this partition deals some examples twice, which does not go with {beside}; deal them once")
    supervision.check(num_clients, int(most * (1 - held_out.client_test_fraction)))
    supervision = supervision._replace(
        server_labels=supervision.server_labels_per_class(class_counts) * dataset.num_classes
    )
    most, least = int(most) - supervision.server_labels, max(int(least) - supervision.server_labels, 0)
    if held_out.num_natural:
        # Whole clients are held out, whatever of theirs has a label.
        least = max(least, len(labels) - max_test - max_valid - supervision.server_labels)
    else:
        least += unlabelled
    if num_clients > least:
        raise ValueError(
            f"num_clients={num_clients}, but as few as {least} training examples may be left to deal; "
            "lower num_clients or hold out less"
        )
    facts = Facts(
        num_clients=num_clients,
        num_classes=dataset.num_classes,
        class_counts=tuple(int(count) for count in class_counts),
        num_unlabelled=unlabelled,
        natural_sizes=tuple(by_size.tolist()),
        num_natural=by_size.size - held_out.num_natural,
        least=least,
        most=most + unlabelled,
        removed=supervision.server_labels + (removed or max_valid + (max_test if held_out.test_fraction else 0)),
    )
    return _Plan(facts, partition, supervision, held_out, max_test, max_valid, num_train)


def _check_pools(pools: tuple[int, int, int], class_counts: Float[np.ndarray, " K"]) -> None:
    kind, fewest = int(class_counts.argmin()), int(class_counts.min())
    if fewest < sum(pools):
        raise ValueError(
            f"pools={tuple(pools)} asks for {sum(pools)} examples of every class, but class {kind} has {fewest}, "
            "training and test examples together; lower them"
        )


def _draw_roles(
    key: Key[Array, ""], labels: Int[Array, " N"], natural: Int[Array, " N"], *, plan: _Plan, own: OwnWeakLabels
) -> _Roles:
    facts, held_out = plan.facts, plan.held_out
    held = test = valid = server = jnp.zeros(labels.shape, bool)
    newcomer = jnp.full(labels.shape, -1, jnp.int32)
    if held_out.num_natural:
        unseen = held_out.unseen(named_key(key, "test"), facts.num_natural + held_out.num_natural)
        test = held = unseen[natural]
        newcomer = jnp.where(held, facts.num_clients + jnp.cumsum(unseen, dtype=jnp.int32)[natural] - 1, -1)
        natural = jnp.where(held, -1, (jnp.cumsum(~unseen, dtype=jnp.int32) - 1)[natural])
    if held_out.pools:
        held, valid, test = held_out.in_pools(named_key(key, "pools"), labels, plan.num_train)
    if held_out.test_fraction:
        test = held = stratified(named_key(key, "test"), labels, ~held, facts.num_classes, held_out.test_fraction)
    if held_out.validation_fraction:
        share = held_out.validation_fraction
        valid = stratified(named_key(key, "validation"), labels, ~held, facts.num_classes, share)
    if plan.supervision.server_labels:
        each = plan.supervision.server_labels // facts.num_classes
        server = balanced_draw(named_key(key, "server"), labels, ~(held | valid), each)
    pool = Pool(labels, ~(held | valid | server), natural, facts)
    partition_key, apart = named_key(key, "partition"), plan.partition.labelled
    holder = client = plan.partition.assign(partition_key, pool)
    if held_out.client_test_fraction:
        test = held_out.share_of_clients(named_key(key, "test"), client, facts.num_clients)
        client = jnp.where(test, -1, client)
    everyone, known = jnp.ones(facts.num_clients, bool), None if apart is None else apart(partition_key, pool)
    row = jnp.arange(labels.shape[0], dtype=jnp.int32)
    if plan.partition.again is not None:
        again = plan.partition.again(partition_key, pool)
        client, row = jnp.concatenate([client, again.client]), jnp.concatenate([row, again.row])
        known = None if known is None else jnp.concatenate([known, jnp.zeros(again.row.shape, bool)])
    holdings = Holdings(client, labels[row], everyone, facts.num_classes, own, known)
    supervision_key = named_key(key, "supervision")
    labelled = plan.supervision.label(supervision_key, holdings)
    entries, weak = plan.supervision.observe(supervision_key, holdings)
    entries = entries._replace(row=row[entries.row], labelled=labelled[entries.row])
    if plan.partition.parts > 1:
        sizes = plan.partition.parts, facts.num_clients, facts.num_classes
        entries = in_parts(named_key(key, "parts"), entries, labels, *sizes)
    return _Roles(jnp.maximum(holder, newcomer), entries, weak, test, valid, server)


def _static_widths(plan: _Plan) -> _Widths:
    """Widths that every key fits in."""
    facts = plan.facts
    sizes = plan.held_out.sizes_left(plan.partition.bounds(facts))
    bounds = plan.supervision.bounds(sizes, facts.num_clients, facts.num_classes, facts.num_unlabelled == 0)
    return _Widths(*bounds, plan.max_test, plan.max_valid, plan.supervision.server_labels)


def _measure(roles: _Roles, num_clients: int) -> _Widths:
    """Widths of what was drawn."""
    client, labelled = np.asarray(roles.entries.client), np.asarray(roles.entries.labelled)
    sizes = np.bincount(client[client >= 0], minlength=num_clients)
    with_label = np.bincount(client[labelled & (client >= 0)], minlength=num_clients)
    test, valid, server = (int(np.asarray(mask).sum()) for mask in (roles.test, roles.valid, roles.server))
    fewest = int(with_label[with_label > 0].min()) if with_label.any() else 1
    most = int(with_label.max()), int((sizes - with_label).max()), int(sizes.max())
    return _Widths(*most, test, valid, server, fewest)


def _narrower(measured: _Widths, bounds: _Widths, widest: float) -> _Widths:
    """The widths that every key fits in where they are at most `widest` times what is needed, which it is elsewhere."""
    # Those of the clients' tables belong together: none may be wider than the other two allow.
    together = measured[:3], bounds[:3]
    close = all(bound <= widest * needed for needed, bound in zip(*together, strict=True))
    tables = bounds[:3] if close else measured[:3]
    test, valid, server = (
        bound if bound <= widest * needed else needed for needed, bound in zip(measured[3:6], bounds[3:6], strict=True)
    )
    return _Widths(*tables, test, valid, server, measured.min_labelled)


@partial(jax.jit, static_argnames=("num_clients", "widths"))
def _tabulate(roles: _Roles, labels: Int[Array, " N"], *, num_clients: int, widths: _Widths) -> dict[str, Any]:
    """All index tables and counts of a federation, by the names of `FederatedData`."""
    entries, labelled = roles.entries, roles.entries.labelled
    assert labelled is not None
    # An example that is dealt again may have its label at one client and none at another.
    seen = jnp.zeros(labels.shape, bool).at[entries.row].max(labelled & (entries.client >= 0)) | roles.server
    weakly = ~labelled & (entries.observation >= 0)
    num_examples = count_groups(entries.client, num_clients)
    owner = jnp.where(entries.client >= 0, entries.client, num_clients)
    order = jnp.lexsort((~weakly, ~labelled, owner)).astype(jnp.int32)
    start = jnp.cumsum(num_examples, dtype=jnp.int32) - num_examples
    column = jnp.arange(max(widths.examples, 1), dtype=jnp.int32)
    place = order[jnp.minimum(start[:, None] + column, order.shape[0] - 1)]
    real = column < num_examples[:, None]
    tables: dict[str, Any] = {
        "observed": jnp.where(seen, labels, -1),
        "index": jnp.where(real, entries.row[place], 0),
        "num_labelled": count_groups(jnp.where(labelled, entries.client, -1), num_clients),
        "num_examples": num_examples,
        "weak": roles.weak,
    }
    if roles.weak is not None:
        tables["weak"] = dataclasses.replace(
            roles.weak,
            labels=jnp.where(real & weakly[place], entries.observation[place], -1),
            num_examples=count_groups(jnp.where(weakly, entries.client, -1), num_clients),
            share=shares_of_sets(roles.weak, entries, weakly),
        )
    for name, mask, width in (
        ("test", roles.test, widths.test),
        ("valid", roles.valid, widths.valid),
        ("server", roles.server, widths.server),
    ):
        tables[f"{name}_index"] = jnp.nonzero(mask, size=width, fill_value=0)[0].astype(jnp.int32)
        tables[f"num_{name}"] = mask.sum(dtype=jnp.int32)
    tested = jnp.arange(widths.test, dtype=jnp.int32) < tables["num_test"]
    tables["test_client"] = jnp.where(tested, roles.holder[tables["test_index"]], -1)
    return tables
