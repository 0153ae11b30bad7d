"""`federate`: hold examples out, deal the others to clients and hide labels."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_ssl.checks import check_whole_numbers, required
from fedjax_ssl.data.dataset import Dataset, with_pooled_splits
from fedjax_ssl.data.federation.dealing import (
    Mask,
    int_range,
    running_sum,
    with_their_groups,
)
from fedjax_ssl.data.federation.federated_data import (
    FederatedData,
    client_number,
    natural_names,
)
from fedjax_ssl.data.federation.held_out import (
    HeldOut,
    stratified,
)
from fedjax_ssl.data.federation.host_inputs import HostInputs, load_examples
from fedjax_ssl.data.federation.partition import PARTITIONS
from fedjax_ssl.data.federation.planned import compared
from fedjax_ssl.data.federation.pool import (
    Facts,
    Holdings,
    OwnWeakLabels,
    Pool,
    in_parts,
)
from fedjax_ssl.data.federation.supervision import SUPERVISIONS, Supervision, build_supervision
from fedjax_ssl.data.federation.tables import Plan, Roles, find_widths, tabulate, with_own_test
from fedjax_ssl.keys import PRNGKey, named_key
from fedjax_ssl.own_code import check_returned, where
from fedjax_ssl.registry import did_you_mean


@required
def federate(
    key: PRNGKey,
    dataset: Dataset,
    *,
    partition: str = "natural",
    num_clients: int | None = None,
    partition_options: Mapping[str, Any] | None = None,
    supervision: str | None = None,
    supervision_options: Mapping[str, Any] | None = None,
    inputs: Array | HostInputs | None = None,
    held_out: HeldOut | None = None,
    **held: Any,
) -> FederatedData:
    """Hold examples out, deal the others to clients and hide labels.

    Pure in `key`, which is never traced: draw first, and pass the federation to a compiled program.

    Test examples are drawn first, then validation examples from the rest, then the server's. A
    `Split.group` is held out as a whole; a member that can be on neither side (of another client,
    without a label) is dropped. `test_client` has the owner of each test example, as far as the
    partition tells; a natural client that only has test examples is numbered after the training
    clients.

    Args:
        key: typed PRNG key; decides held-out examples, partition and hidden labels, in independent
            streams.
        dataset: see `fedjax_ssl.data.load`.
        partition: a name of `PARTITIONS`.
        num_clients: number of training clients C; None: all natural clients that are not held out.
        partition_options: options of the named partition.
        supervision: a name of `SUPERVISIONS`; None: "per_client" with its options, else "all".
        supervision_options: options of the named supervision, and `labelled_clients` and `which`,
            which all supervisions have.
        inputs: inputs of an earlier federation with another key and the same arguments, so that
            both share them. `HostInputs` of the dataset stay on the host; the device gets the
            examples for evaluation and the server.
        held_out: examples to hold out for test and validation; none by default.
        **held: fields of `HeldOut` by name, which replace those of `held_out`.

    Returns:
        The federation.

    Raises:
        ValueError: unknown names or options; more clients, labels or held-out data than there are.

    Example:
        >>> digits = fs.load_dataset("digits")
        >>> five = {"labels": 5}
        >>> data = fs.federate(jax.random.key(0), digits, test_clients=3, supervision_options=five)
        >>> data.num_clients, data.num_labelled.tolist()
        (11, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5])
    """
    held_out = dataclasses.replace(held_out or HeldOut(), **held)
    with jax.ensure_compile_time_eval():  # a fixed key may be inside a user's jit
        drawing = Drawing(
            dataset,
            partition,
            num_clients,
            partition_options or {},
            supervision or ("per_client" if supervision_options else "all"),
            supervision_options or {},
            held_out,
        )
        return drawing(key, inputs)


class Drawing:
    """Federations of one description, drawn by their keys; checked and compiled once for all of
    them.

    Attributes:
        held_out: examples that each federation holds out.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: str,
        num_clients: int | None,
        partition_options: Mapping[str, Any],
        supervision: str,
        supervision_options: Mapping[str, Any],
        held_out: HeldOut,
    ):
        """Check the arguments; see `federate`."""
        plan, dataset, natural = _make_plan(
            dataset,
            held_out,
            partition,
            num_clients,
            partition_options,
            supervision,
            supervision_options,
        )
        self.held_out = held_out
        self._plan = plan
        self._dataset = dataset
        self._partition = partition
        self._labels = jnp.asarray(dataset.train.y, jnp.int32)
        own = OwnWeakLabels(
            dataset.train.coarse,
            len(dataset.coarse_names or ()),
            dataset.correspondence,
            dataset.train.set,
            dataset.set_shares,
        )
        # Compiled as a whole, because a first start operation by operation takes much longer
        # (docs/speed.md).
        self._draw = jax.jit(partial(_draw_roles, plan=plan, own=own))
        self._examples = self._labels, natural, dataset.train.group

    def __call__(self, key: PRNGKey, inputs: Array | HostInputs | None = None) -> FederatedData:
        """Draw a federation; see `federate`."""
        if isinstance(key, jax.core.Tracer):
            raise ValueError(
                "a federation is drawn by a key that is traced by jit or vmap; draw it before, and "
                "pass it as an argument: train(key, federation=train.draw(key))"
            )
        plan = self._plan
        dataset = self._dataset
        num_clients = plan.facts.num_clients
        # Draw the use of every training example.
        roles = jax.device_get(self._draw(key, self._examples))
        stray = int(roles.entries.client.max())
        if stray >= num_clients:
            raise ValueError(
                f"partition {self._partition!r} gives examples to client {stray}; there are "
                f"clients 0 to {num_clients - 1}, and -1 for nobody "
                f"({where(plan.partition.assign)})"
            )
        # Write the roles into tables, as rows of the training examples; the dataset's own test
        # examples follow these.
        widths = find_widths(plan, roles)
        tables = tabulate(roles, dataset.train.y, num_clients=num_clients, widths=widths)
        splits, tables = with_own_test(key, dataset, plan, roles, tables)
        if inputs is None:
            inputs = jnp.asarray(splits[0] if len(splits) == 1 else np.concatenate(splits))
        named = (
            rule.coarse_names(dataset.num_classes)
            for rule, _ in plan.supervision.weak
            if rule.coarse_names
        )
        federation = FederatedData(
            inputs=cast(Array, inputs),
            num_classes=dataset.num_classes,
            max_labelled=widths.max_labelled,
            max_unlabelled=widths.max_unlabelled,
            min_labelled=widths.min_labelled,
            num_parts=plan.partition.parts,
            rounds_per_part=plan.partition.rounds_per_part,
            coarse_names=next(named, dataset.coarse_names or ()),
            **tables,
        )
        # If examples stay on the host, bring those for evaluation to the device.
        if isinstance(inputs, HostInputs):
            loaded = cast(Array, load_examples(inputs, federation))
            federation = dataclasses.replace(federation, inputs=loaded)
        return federation


def _number_of(dataset: Dataset, client: int | str | None) -> int | None:
    """Return the number of a natural client from its name, or from its number if no name is a
    number.
    """
    if client is None:
        return None
    names = natural_names(dataset)
    number = client_number(names, client)
    if number is None:
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        hint = did_you_mean(client, names)
        raise ValueError(
            f"left_out_client={client!r}, but dataset {dataset.name!r} has no such client.{hint} "
            f"Its clients: {shown or 'none'}"
        )
    return number


def _make_plan(
    dataset: Dataset,
    held_out: HeldOut,
    partition: str,
    num_clients: int | None,
    partition_options: Mapping[str, Any],
    supervision: str,
    supervision_options: Mapping[str, Any],
) -> tuple[Plan, Dataset, Int[np.ndarray, " N"]]:
    """Check the arguments, and make the plan.

    Returns:
        (plan, dataset with its splits pooled if need be and groups 0..N-1, natural client of every
        training example: numbered without gaps, -1 where the dataset has none).
    """
    number = _number_of(dataset, held_out.left_out_client)
    held_out = dataclasses.replace(held_out, left_out_client=number)
    num_train = len(dataset.train)
    if held_out.pools is not None and dataset.test is not None:
        dataset = with_pooled_splits(dataset)
    # Number natural clients and groups without gaps.
    train = dataset.train
    natural = np.full(len(train), -1, np.int32)
    if train.client is not None:
        natural = np.unique(train.client, return_inverse=True)[1].astype(np.int32)
    sizes = np.sort(np.bincount(natural[natural >= 0]))
    group = train.group
    if group is not None:  # an example without a group is alone in a group of its own
        alone = group.max() + 1 + np.arange(len(group))
        group = np.unique(np.where(group < 0, alone, group), return_inverse=True)[1]
        dataset = dataclasses.replace(dataset, train=dataclasses.replace(train, group=group))
    # Build the rules, and refuse rules that do not fit together.
    held_out.check(dataset.name, len(sizes), group is not None)
    is_natural = partition == "natural"
    if is_natural and not sizes.size:
        raise ValueError(
            f"dataset {dataset.name!r} has no natural clients; choose another partition, such as "
            "'iid'"
        )
    if supervision == "given" and dataset.set_shares is not None and not is_natural:
        raise ValueError(
            f"partition {partition!r} deals the examples anew, but supervision 'given' has class "
            "shares of the sets of the dataset's own clients; use partition 'natural'"
        )
    count = _count_clients(partition, num_clients, len(sizes) - held_out.num_natural)
    own: dict[str, Any] = {}
    if SUPERVISIONS.takes(supervision, "points"):
        own["points"] = compared(dataset)
    shown = build_supervision(supervision, **own, **supervision_options)
    counted = _count_examples(dataset, sizes, held_out, count, shown)
    given = {"facts": counted[0]} if PARTITIONS.takes(partition, "facts") else {}
    dealt = PARTITIONS.build(partition, **given, **partition_options)
    if dealt.again is not None and (shown.weak or held_out.client_test_fraction):
        beside = "test examples of the clients (client_test_fraction)"
        if shown.weak:
            beside = "coarse labels or sets"
        raise ValueError(
            f"this partition deals some examples twice, which does not go with {beside}; deal "
            "them once"
        )
    plan = Plan(*counted, dealt, held_out, num_train, is_natural)
    return plan, dataset, natural


def _count_clients(partition: str, num_clients: int | None, num_natural: int) -> int:
    if num_clients is None:
        if partition != "natural":
            raise ValueError(
                f"partition {partition!r} does not know how many clients there are; set "
                "partition.num_clients"
            )
        return num_natural
    check_whole_numbers(num_clients=num_clients)
    if partition == "natural" and num_clients > num_natural:
        raise ValueError(
            f"num_clients={num_clients}, but only {num_natural} natural clients are left to train"
        )
    return num_clients


def _count_examples(
    dataset: Dataset,
    by_size: Int[np.ndarray, " G"],
    held_out: HeldOut,
    num_clients: int,
    supervision: Supervision,
) -> tuple[Facts, Supervision, bool]:
    """Estimate the number of examples to deal, for the checks of partitions and supervisions; a
    group counts as drawn to half a group's accuracy.

    Returns:
        (facts, supervision with the labels that the server really gets, whether validation examples
        are drawn).
    """
    labels = dataset.train.y
    num_classes = dataset.num_classes
    num_natural = held_out.num_natural
    # Counts before anything is held out: at least `least` and at most `most` examples have a label.
    unlabelled = int((labels < 0).sum())
    class_counts = np.bincount(labels[labels >= 0], minlength=num_classes).astype(np.float64)
    largest_group = 1
    lost = 0  # examples without a label whose group may be held out
    group = dataset.train.group
    if group is not None:
        largest_group = int(np.bincount(group).max())
        lost = int(((labels < 0) & np.isin(group, group[labels >= 0])).sum())
    newcomers = int(by_size[by_size.size - num_natural :].sum())
    held = 0
    most = min(class_counts.sum(), float(len(labels) - by_size[:num_natural].sum()))
    least = max(class_counts.sum() - newcomers, 0.0)

    def hold_out(share: float) -> int:
        # Stratified rounding is within one of the exact share per class, and the total within a
        # half; the rest is for float32.
        nonlocal class_counts, most, least
        off = num_classes * (largest_group // 2)
        taken = int(most * share) + 2 + off
        if largest_group == 1:  # a group may have several classes
            class_counts = np.minimum(class_counts, class_counts * (1 - share) + 2)
        most = most * (1 - share) + 1 + off
        least = max(least * (1 - share) - 1 - off, 0.0)
        return taken

    # Test examples go first: in pools, as a share of all, or as a share of every client's.
    kept = 1 - held_out.client_test_fraction
    if held_out.pools:
        held_out.check_pools(class_counts)
        class_counts = np.full(num_classes, float(held_out.pools[0]))
        most = least = class_counts.sum()
    if held_out.test_fraction:
        hold_out(held_out.test_fraction)
    # If clients give test examples away, all examples are dealt first, and these are taken from
    # them.
    dealt = class_counts, int(least) + unlabelled, most
    # Then validation examples, and the server's.
    validates = held_out.validates(int(most * kept))
    if validates:
        held = hold_out(held_out.validation_fraction)
    supervision.check(num_clients, int(most * kept))
    at_server = supervision.count_at_server(class_counts * kept, int(most * kept))
    # The examples that remain for the clients, with or without a label.
    most = int(most) - at_server
    least = max(int(least) - at_server, 0)
    if num_natural:  # clients are held out whole, with and without labels
        least = max(least, len(labels) - newcomers - held - at_server)
    else:
        least += unlabelled - lost
    if num_clients > least:
        raise ValueError(
            f"num_clients={num_clients}, but as few as {least} training examples may be left to "
            "deal; lower num_clients or hold out less"
        )
    if held_out.client_test_fraction:
        class_counts, least, most = dealt
    facts = Facts(
        num_clients=num_clients,
        num_classes=num_classes,
        class_counts=tuple(int(count) for count in class_counts),
        num_unlabelled=unlabelled,
        num_natural=by_size.size - num_natural,
        least=least,
        most=int(most) + unlabelled,
    )
    return facts, supervision._replace(server_labels=at_server), validates


def _draw_roles(
    key: PRNGKey,
    examples: tuple[Array, Array, Array | None],
    *,
    plan: Plan,
    own: OwnWeakLabels,
) -> Roles:
    """Decide the use of every training example, by labels, natural clients and groups."""
    labels, natural, group = examples
    facts = plan.facts
    held_out = plan.held_out
    held = test = valid = server = jnp.zeros(labels.shape, bool)

    def draw(name: str, share: float) -> Mask:
        return stratified(named_key(key, name), labels, ~held, facts.num_classes, share, group)

    # Test examples: whole clients, numbered after those that train, or pools, or a share.
    newcomer = jnp.full(labels.shape, -1, jnp.int32)
    if held_out.num_natural:
        unseen = held_out.unseen(named_key(key, "test"), facts.num_natural + held_out.num_natural)
        test = held = unseen[natural]
        place = running_sum(unseen)[natural] - 1
        newcomer = jnp.where(held, facts.num_clients + place, -1)
        natural = jnp.where(held, -1, (running_sum(~unseen) - 1)[natural])
    if held_out.pools:
        held, valid, test = held_out.in_pools(named_key(key, "pools"), labels, plan.num_train)
    if held_out.test_fraction:
        test = held = draw("test", held_out.test_fraction)
    held = with_their_groups(held, group)
    partition_key = named_key(key, "partition")
    pool = Pool(labels, ~held, natural, facts)
    # The share of each client's examples is drawn before validation and server, so these do not
    # change it.
    if held_out.client_test_fraction:
        holder = plan.partition.assign(partition_key, pool)
        test = held_out.share_of_clients(named_key(key, "test"), holder, facts.num_clients, group)
        held = with_their_groups(test, group)
    # Validation examples and the server's.
    if plan.validates and not held_out.pools:
        valid = draw("validation", held_out.validation_fraction)
        held |= with_their_groups(valid, group)
    if plan.supervision.server_labels:
        server = plan.supervision.draw_at_server(
            named_key(key, "server"), labels, ~(held | valid), facts.num_classes
        )
    # Deal the remaining examples, some of them twice.
    if not held_out.client_test_fraction:
        pool = dataclasses.replace(pool, available=~(held | valid | server))
        holder = plan.partition.assign(partition_key, pool)
    check_returned(
        "clients that the partition assigns",
        plan.partition.assign,
        holder,
        labels.shape,
        np.integer,
    )
    client = jnp.where(held | valid | server, -1, holder)
    row = int_range(labels.shape[0])
    known = None
    if plan.partition.labelled is not None:
        known = plan.partition.labelled(partition_key, pool)
    if plan.partition.again is not None:
        again = plan.partition.again(partition_key, pool)
        client = jnp.concatenate([client, again.client])
        row = jnp.concatenate([row, again.row])
        if known is not None:
            known = jnp.concatenate([known, jnp.zeros(again.row.shape, bool)])
    # Hide labels, and replace some by weak ones.
    everyone = jnp.ones(facts.num_clients, bool)
    holdings = Holdings(client, labels[row], everyone, facts.num_classes, own, known)
    supervision_key = named_key(key, "supervision")
    labelled = plan.supervision.label(supervision_key, holdings)
    entries, weak = plan.supervision.observe(supervision_key, holdings)
    entries = entries._replace(row=row[entries.row], labelled=labelled[entries.row])
    if plan.partition.parts > 1:
        entries = in_parts(named_key(key, "parts"), entries, labels, plan.partition.parts, facts)
    return Roles(jnp.maximum(holder, newcomer), entries, weak, test, valid, server)
