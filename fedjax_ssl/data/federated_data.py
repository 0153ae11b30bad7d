"""The federation on the device: flat arrays of examples and, per client, a padded table of rows."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.data.partition import (
    Bounds,
    Facts,
    Pool,
    build_partition,
    count_groups,
    largest_remainder,
    rank_within,
)
from fedjax_ssl.data.supervision import balanced_draw, build_supervision
from fedjax_ssl.data.types import Dataset
from fedjax_ssl.keys import named_key

Options = tuple[tuple[str, Any], ...]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "inputs",
        "labels",
        "observed",
        "index",
        "num_labelled",
        "num_examples",
        "test_index",
        "num_test",
        "valid_index",
        "num_valid",
        "server_index",
        "num_server",
    ),
    meta_fields=("num_classes", "max_labelled", "max_unlabelled"),
)
@dataclasses.dataclass(frozen=True)
class FederatedData:
    """A federated dataset as a pytree. N examples (train and test), C clients, n rows of the largest client."""

    inputs: Array  # [N, ...] uint8 as stored, or float32
    labels: Int[Array, " N"]  # ground truth, -1 = none; only for evaluation and diagnostics
    observed: Int[Array, " N"]  # what clients (or the server, for its rows) see, -1 = nothing
    index: Int[Array, "C n"]  # rows of `inputs` per client, labelled examples first, padding 0
    num_labelled: Int[Array, " C"]
    num_examples: Int[Array, " C"]
    test_index: Int[Array, " T"]
    num_test: Int[Array, ""]  # the first so many entries are real; so for the next two
    valid_index: Int[Array, " V"]
    num_valid: Int[Array, ""]
    server_index: Int[Array, " S"]  # labelled examples that the server holds
    num_server: Int[Array, ""]
    num_classes: int
    max_labelled: int  # bound over clients
    max_unlabelled: int  # bound over clients

    @property
    def num_clients(self) -> int:
        """Number of clients C."""
        return self.index.shape[-2]

    @property
    def max_examples(self) -> int:
        """Width n of `index`: at least as much as the largest client has."""
        return self.index.shape[-1]

    def summary(self) -> dict[str, int]:
        """Counts for printing, read back from the device (so not inside jit)."""
        sizes, labelled = np.asarray(self.num_examples), np.asarray(self.num_labelled)
        return {
            "clients": self.num_clients,
            "labelled_clients": int((labelled > 0).sum()),
            "classes": self.num_classes,
            "train_examples": int(sizes.sum()),
            "labelled_examples": int(labelled.sum()),
            "smallest_client": int(sizes.min(initial=sizes.max(initial=0))),
            "largest_client": int(sizes.max(initial=0)),
            "server_examples": int(self.num_server),
            "validation_examples": int(self.num_valid),
            "test_examples": int(self.num_test),
        }


class _Plan(NamedTuple):
    """Everything about a federation but its key and arrays; hashable, so that equal calls compile once."""

    facts: Facts
    partition: tuple[str, Options]
    supervision: tuple[str, Options]
    test_clients: int
    test_fraction: float
    validation_fraction: float
    max_test: int  # bounds for every key, of what is held out of the training examples
    max_valid: int

    @property
    def replaces_test(self) -> bool:
        """Whether the test set is made of training examples instead of the dataset's own test split."""
        return self.test_clients > 0 or self.test_fraction > 0


class _Widths(NamedTuple):
    """Static sizes of the tables."""

    examples: int
    max_labelled: int
    max_unlabelled: int
    test: int
    valid: int
    server: int


class _Roles(NamedTuple):
    """What every training example is used for."""

    client: Int[Array, " N"]  # -1 = no client's
    labelled: Bool[Array, " N"]  # the client sees the label
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
    test_fraction: float = 0.0,
    validation_fraction: float = 0.0,
) -> FederatedData:
    """Holds examples out, deals the others to clients and hides labels.

    Pure in `key`, and traceable: `jax.jit(jax.vmap(lambda k: federate(k, dataset, ...)))(keys)` draws one
    federation per key. With a concrete key the tables are as narrow as the data; under a trace they take the
    width that every key fits in, and the content is the same.

    The test set is the dataset's own, unless `test_clients` or `test_fraction` asks for another one, which is
    then taken from the training examples instead. Validation examples always have a label, and so have those
    of `test_fraction`; both are stratified by class.

    Args:
        key: typed PRNG key; decides held-out examples, partition and hidden labels, in independent streams.
        dataset: see `fedjax_ssl.data.load`.
        partition: a name of `available_partitions()`.
        num_clients: number of training clients C; None: all natural clients that are not held out.
        partition_options: of the named partition.
        supervision: a name of `available_supervisions()`.
        supervision_options: of the named supervision, and `labelled_clients`, `which` for all of them.
        test_clients: so many natural clients, drawn by key, are kept out of training; their examples are the
            test set.
        test_fraction: share of the labelled training examples that become the test set.
        validation_fraction: share of the remaining labelled training examples that become the validation set.

    Returns:
        The federation.

    Raises:
        ValueError: unknown names or options; more clients, labels or held-out data than there are.
    """
    plan = _make_plan(
        dataset,
        (partition, _frozen(partition_options)),
        num_clients,
        (supervision, _frozen(supervision_options)),
        test_clients,
        test_fraction,
        validation_fraction,
    )
    labels = jnp.asarray(dataset.train.y, jnp.int32)
    roles = _draw_roles(key, labels, jnp.asarray(_natural_clients(dataset)), plan)
    # Asked of the result, not of the key: a fixed key inside somebody's jit also gives traced roles.
    traced = isinstance(roles.client, jax.core.Tracer)
    widths = _static_widths(plan) if traced else _measure(roles, plan)
    tables = _tabulate(roles, labels, plan.facts.num_clients, widths)
    inputs, truth = dataset.train.x, dataset.train.y
    if dataset.test is not None and not plan.replaces_test:
        rows = len(truth) + np.flatnonzero(dataset.test.y >= 0)
        inputs, truth = np.concatenate([inputs, dataset.test.x]), np.concatenate([truth, dataset.test.y])
        tables["test_index"] = jnp.asarray(rows, jnp.int32)
        tables["num_test"] = jnp.asarray(rows.size, jnp.int32)
        hidden = jnp.full(len(dataset.test.y), -1, jnp.int32)
        tables["observed"] = jnp.concatenate([tables["observed"], hidden])
    return FederatedData(
        inputs=jnp.asarray(inputs),
        labels=jnp.asarray(truth, jnp.int32),
        num_classes=dataset.num_classes,
        max_labelled=widths.max_labelled,
        max_unlabelled=widths.max_unlabelled,
        **tables,
    )


def validate(data: FederatedData, labels_required: bool = True) -> None:
    """Checks on the host that a federation can be trained and evaluated on.

    Args:
        data: one federation, not a stack of them and not traced.
        labels_required: False for methods that need no label at all.

    Raises:
        ValueError: no clients, a client without examples, no test examples, or no label anywhere.
    """
    sizes = np.asarray(data.num_examples)
    if sizes.size == 0 or sizes.sum() == 0:
        raise ValueError("the federation is empty: no client has a training example; hold out less or use more data")
    empty = np.flatnonzero(sizes == 0)
    if empty.size:
        raise ValueError(
            f"{empty.size} of {sizes.size} clients have no training example (the first is client {empty[0]}); "
            "use fewer clients, hold out less, or a partition with a minimum (dirichlet with min_examples)"
        )
    if int(data.num_test) == 0:
        raise ValueError("there are no test examples; give test_clients or test_fraction")
    if labels_required and int(data.num_server) == 0 and not np.asarray(data.num_labelled).any():
        raise ValueError("no client and not the server has any label; choose a supervision that keeps some")


def _frozen(options: Mapping[str, Any] | None) -> Options:
    """Options as a hashable value: sorted pairs, sequences as tuples."""
    pairs = sorted(dict(options or {}).items())
    return tuple((name, tuple(value) if isinstance(value, list | np.ndarray) else value) for name, value in pairs)


def _natural_clients(dataset: Dataset) -> Int[np.ndarray, " N"]:
    """Natural client of every training example, numbered without gaps; -1 where the dataset has none."""
    if dataset.train.client is None:
        return np.full(len(dataset.train.y), -1, np.int32)
    return np.unique(dataset.train.client, return_inverse=True)[1].astype(np.int32)


def _make_plan(
    dataset: Dataset,
    partition: tuple[str, Options],
    num_clients: int | None,
    supervision: tuple[str, Options],
    test_clients: int,
    test_fraction: float,
    validation_fraction: float,
) -> _Plan:
    """Checks the arguments and works out what holds for every key."""
    for name, value in (("test_fraction", test_fraction), ("validation_fraction", validation_fraction)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")
    if test_clients and test_fraction:
        raise ValueError(f"test_clients={test_clients} and test_fraction={test_fraction}: give only one of them")
    natural_sizes: tuple[int, ...] = ()
    if dataset.train.client is not None:
        natural_sizes = tuple(np.sort(np.bincount(_natural_clients(dataset))).tolist())
    if test_clients and not 0 < test_clients < len(natural_sizes):
        have = f"has {len(natural_sizes)}" if natural_sizes else "has no natural clients"
        raise ValueError(f"test_clients={test_clients}, but dataset {dataset.name!r} {have}; at least one must train")

    num_natural = len(natural_sizes) - test_clients
    if partition[0] == "natural" and not natural_sizes:
        raise ValueError(f"dataset {dataset.name!r} has no natural clients; choose another partition, such as 'iid'")
    if partition[0] == "natural" and (num_clients or 0) > num_natural:
        raise ValueError(f"num_clients={num_clients}, but only {num_natural} natural clients are left to train")
    if num_clients is None:
        num_clients = num_natural
        if partition[0] != "natural":
            raise ValueError(f"partition {partition[0]!r} needs num_clients")
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")

    build_partition(partition[0], **dict(partition[1]))
    supervised = build_supervision(supervision[0], **dict(supervision[1]))
    labels = dataset.train.y
    held_natural = (
        sum(natural_sizes[:test_clients]),
        sum(natural_sizes[len(natural_sizes) - test_clients :]),
    )
    class_counts = np.bincount(labels[labels >= 0], minlength=dataset.num_classes).astype(np.float64)
    unlabelled = int((labels < 0).sum())
    most = float(min(class_counts.sum(), len(labels) - held_natural[0]))
    max_test, max_valid = held_natural[1], 0
    least = float(max(len(labels) - held_natural[1] - unlabelled, 0))
    # Stratified rounding is within one of the exact share per class, and the total within a half; +1 for
    # float32.
    if test_fraction:
        max_test = int(most * test_fraction) + 2
        class_counts = np.minimum(class_counts, class_counts * (1 - test_fraction) + 2)
        most, least = most * (1 - test_fraction) + 1, max(least * (1 - test_fraction) - 1, 0)
    if validation_fraction:
        max_valid = int(most * validation_fraction) + 2
        class_counts = np.minimum(class_counts, class_counts * (1 - validation_fraction) + 2)
        most, least = most * (1 - validation_fraction) + 1, max(least * (1 - validation_fraction) - 1, 0)
    supervised.check(num_clients, int(most))
    labelled = Bounds(max(int(least) - supervised.server_labels, 0), int(most) - supervised.server_labels)
    if num_clients > labelled.smallest + unlabelled:
        raise ValueError(
            f"num_clients={num_clients}, but as few as {labelled.smallest + unlabelled} training examples may be "
            "left to deal; lower num_clients or hold out less"
        )
    facts = Facts(
        num_clients=num_clients,
        num_classes=dataset.num_classes,
        class_counts=tuple(np.floor(class_counts).astype(int).tolist()),
        num_unlabelled=unlabelled,
        natural_sizes=natural_sizes,
        num_natural=num_natural,
        least=labelled.smallest if test_clients else labelled.smallest + unlabelled,
        most=labelled.largest + unlabelled,
        removed=supervised.server_labels + max_valid + (max_test if test_fraction else 0),
    )
    return _Plan(facts, partition, supervision, test_clients, test_fraction, validation_fraction, max_test, max_valid)


def _draw_roles(key: Key[Array, ""], labels: Int[Array, " N"], natural: Int[Array, " N"], plan: _Plan) -> _Roles:
    facts = plan.facts
    num_natural = len(facts.natural_sizes)
    none = jnp.zeros(labels.shape, bool)
    test = none
    if plan.test_clients:
        place = rank_within(named_key(key, "test"), jnp.zeros(num_natural, jnp.int32))
        unseen = place < plan.test_clients
        test = unseen[natural]
        natural = jnp.where(test, -1, (jnp.cumsum(~unseen, dtype=jnp.int32) - 1)[natural])
    if plan.test_fraction:
        test = _stratified(named_key(key, "test"), labels, ~none, facts.num_classes, plan.test_fraction)
    valid = none
    if plan.validation_fraction:
        valid = _stratified(named_key(key, "validation"), labels, ~test, facts.num_classes, plan.validation_fraction)
    supervised = build_supervision(plan.supervision[0], **dict(plan.supervision[1]))
    server = none
    if supervised.server_labels:
        server = balanced_draw(named_key(key, "server"), labels, ~(test | valid), supervised.server_labels)
    pool = Pool(labels, ~(test | valid | server), natural, facts)
    client = build_partition(plan.partition[0], **dict(plan.partition[1])).assign(named_key(key, "partition"), pool)
    labelled = supervised.label(named_key(key, "supervision"), client, labels, facts.num_clients, facts.num_classes)
    return _Roles(client, labelled, test, valid, server)


def _stratified(
    key: Key[Array, ""],
    labels: Int[Array, " N"],
    available: Bool[Array, " N"],
    num_classes: int,
    share: float,
) -> Bool[Array, " N"]:
    """A random share of the available labelled examples, the same of every class up to rounding."""
    group = jnp.where(available, labels, -1)
    counts = count_groups(group, num_classes)
    total = jnp.floor(share * counts.sum(dtype=jnp.int32).astype(jnp.float32) + 0.5).astype(jnp.int32)
    quota = largest_remainder(counts.astype(jnp.float32), total, named_key(key, "ties"))
    return (group >= 0) & (rank_within(named_key(key, "rank"), group) < quota[group])


def _static_widths(plan: _Plan) -> _Widths:
    facts = plan.facts
    sizes = build_partition(plan.partition[0], **dict(plan.partition[1])).bounds(facts)
    supervised = build_supervision(plan.supervision[0], **dict(plan.supervision[1]))
    bounds = supervised.bounds(sizes, facts.num_clients, facts.num_classes, facts.num_unlabelled == 0)
    return _Widths(
        sizes.largest,
        bounds.max_labelled,
        bounds.max_unlabelled,
        plan.max_test,
        plan.max_valid,
        supervised.server_labels,
    )


def _measure(roles: _Roles, plan: _Plan) -> _Widths:
    client, labelled = np.asarray(roles.client), np.asarray(roles.labelled)
    sizes = np.bincount(client[client >= 0], minlength=plan.facts.num_clients)
    with_label = np.bincount(client[labelled], minlength=plan.facts.num_clients)
    return _Widths(
        int(sizes.max()),
        int(with_label.max()),
        int((sizes - with_label).max()),
        int(np.asarray(roles.test).sum()),
        int(np.asarray(roles.valid).sum()),
        int(np.asarray(roles.server).sum()),
    )


def _tabulate(roles: _Roles, labels: Int[Array, " N"], num_clients: int, widths: _Widths) -> dict[str, Array]:
    """All index tables and counts of a federation, by the names of `FederatedData`."""
    num_examples = count_groups(roles.client, num_clients)
    owner = jnp.where(roles.client >= 0, roles.client, num_clients)
    order = jnp.lexsort((~roles.labelled, owner)).astype(jnp.int32)
    start = jnp.cumsum(num_examples, dtype=jnp.int32) - num_examples
    column = jnp.arange(max(widths.examples, 1), dtype=jnp.int32)
    place = jnp.minimum(start[:, None] + column, labels.shape[0] - 1)
    tables = {
        "observed": jnp.where(roles.labelled | roles.server, labels, -1),
        "index": jnp.where(column < num_examples[:, None], order[place], 0),
        "num_labelled": count_groups(jnp.where(roles.labelled, roles.client, -1), num_clients),
        "num_examples": num_examples,
    }
    for name, mask, width in (
        ("test", roles.test, widths.test),
        ("valid", roles.valid, widths.valid),
        ("server", roles.server, widths.server),
    ):
        tables[f"{name}_index"] = jnp.nonzero(mask, size=width, fill_value=0)[0].astype(jnp.int32)
        tables[f"num_{name}"] = mask.sum(dtype=jnp.int32)
    return tables
