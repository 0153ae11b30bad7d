"""What a federation is drawn as, before and after: its plan, the role of every example, and the
tables of these roles.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
    count_groups,
    int_range,
    running_sum,
)
from fedjax_ssl.data.federation.federated_data import WeakLabels
from fedjax_ssl.data.federation.held_out import (
    HeldOut,
    balanced_test_examples,
    clients_of_own_test,
)
from fedjax_ssl.data.federation.pool import Entries, Facts, Partition
from fedjax_ssl.data.federation.supervision import Supervision
from fedjax_ssl.data.federation.weak_labels import shares_of_sets
from fedjax_ssl.keys import PRNGKey, named_key


class Plan(NamedTuple):
    """Everything about a federation but its key and arrays."""

    facts: Facts
    supervision: Supervision
    # Bounds for every key, of what is held out of the training examples.
    max_test: int
    max_valid: int
    partition: Partition
    held_out: HeldOut
    num_train: int  # examples of the dataset's own training split
    natural: bool  # clients are the dataset's own
    off: int  # sizes of clients may be off by so many, since groups are held out as a whole


class Widths(NamedTuple):
    """Static sizes of the tables."""

    max_labelled: int
    max_unlabelled: int
    examples: int
    test: int
    valid: int
    server: int
    min_labelled: int = 1  # labels of a client that has any


class Roles(NamedTuple):
    """The use of every training example."""

    holder: Ids  # client that has it, for training or as a test example; -1 = nobody
    entries: Entries  # the examples as clients train on them
    weak: WeakLabels | None
    test: Mask
    valid: Mask
    server: Mask


def find_widths(plan: Plan, roles: Roles, widest: float) -> Widths:
    """Find widths for the tables: every key fits in them under a trace, or if they are hardly
    wider than needed.
    """
    facts = plan.facts
    taken = plan.max_valid + plan.supervision.server_labels
    sizes = plan.held_out.sizes_left(plan.partition.bounds(facts), taken, plan.off)
    bounds = plan.supervision.bounds(
        sizes, facts.num_clients, facts.num_classes, facts.num_unlabelled == 0
    )
    held_out = plan.max_test, plan.max_valid, plan.supervision.server_labels
    fitting = Widths(*bounds, *held_out)
    # Asked of the result, not of the key: a fixed key inside somebody's jit also gives traced
    # roles.
    if isinstance(roles.entries.client, jax.core.Tracer):
        return fitting
    client = np.asarray(roles.entries.client)
    labelled = np.asarray(roles.entries.labelled)
    counts = np.bincount(client[client >= 0], minlength=facts.num_clients)
    with_label = np.bincount(client[labelled & (client >= 0)], minlength=facts.num_clients)
    fewest = int(with_label[with_label > 0].min()) if with_label.any() else 1
    needed = int(with_label.max()), int((counts - with_label).max()), int(counts.max())
    # These three belong together: none may be wider than the other two allow.
    if all(bound <= widest * least for least, bound in zip(needed, bounds, strict=True)):
        needed = bounds
    others = [int(np.asarray(mask).sum()) for mask in (roles.test, roles.valid, roles.server)]
    test, valid, server = (
        bound if bound <= widest * least else least
        for least, bound in zip(others, held_out, strict=True)
    )
    return Widths(*needed, test, valid, server, fewest)


@partial(jax.jit, static_argnames=("num_clients", "widths"))
def tabulate(roles: Roles, labels: Ids, *, num_clients: int, widths: Widths) -> dict[str, Any]:
    """All index tables and counts of a federation, by the names of `FederatedData`."""
    entries = roles.entries
    labelled = entries.labelled
    weak = roles.weak
    assert labelled is not None
    # An example that is dealt again may have its label at one client and none at another.
    seen = roles.server.at[entries.row].max(labelled & (entries.client >= 0))
    weakly = ~labelled & (entries.observation >= 0)
    num_examples = count_groups(entries.client, num_clients)
    owner = jnp.where(entries.client >= 0, entries.client, num_clients)
    order = jnp.lexsort((~weakly, ~labelled, owner)).astype(jnp.int32)
    start = running_sum(num_examples) - num_examples
    column = int_range(max(widths.examples, 1))
    place = order[jnp.minimum(start[:, None] + column, order.shape[0] - 1)]
    real = column < num_examples[:, None]
    tables: dict[str, Any] = {
        "observed": jnp.where(seen, labels, -1),
        "index": jnp.where(real, entries.row[place], 0),
        "num_labelled": count_groups(jnp.where(labelled, entries.client, -1), num_clients),
        "num_examples": num_examples,
        "weak": weak,
    }
    if weak is not None:
        tables["weak"] = dataclasses.replace(
            weak,
            labels=jnp.where(real & weakly[place], entries.observation[place], -1),
            num_examples=count_groups(jnp.where(weakly, entries.client, -1), num_clients),
            share=shares_of_sets(weak, entries, weakly),
        )
    for name, mask, width in (
        ("test", roles.test, widths.test),
        ("valid", roles.valid, widths.valid),
        ("server", roles.server, widths.server),
    ):
        tables[f"{name}_index"] = jnp.nonzero(mask, size=width, fill_value=0)[0].astype(jnp.int32)
        tables[f"num_{name}"] = mask.sum(dtype=jnp.int32)
    tested = int_range(widths.test) < tables["num_test"]
    tables["test_client"] = jnp.where(tested, roles.holder[tables["test_index"]], -1)
    return tables


def with_own_test(
    key: PRNGKey, dataset: Dataset, plan: Plan, roles: Roles, tables: dict[str, Any]
) -> tuple[list[np.ndarray], Int[Array, " M"], dict[str, Any]]:
    """Add the dataset's own test examples to the tables, where it is tested on them.

    Returns:
        (examples of the splits in use, the labels of them all, tables with two further fields of
        `FederatedData`).
    """
    facts = plan.facts
    held_out = plan.held_out
    rows = held_out.own_test_examples(dataset)
    strangers = 0
    owned = bool(held_out.num_natural or held_out.client_test_fraction)
    splits = [dataset.train.x]
    truth = dataset.train.y
    if dataset.test is not None and rows.size:
        row = jnp.asarray(rows, jnp.int32)
        client = jnp.full(rows.size, -1, jnp.int32)
        if held_out.balanced_test:
            owned = True
            row, client = balanced_test_examples(
                named_key(key, "test"), dataset.test.y, facts.num_clients, facts.num_classes
            )
        elif plan.natural or held_out.left_out_client is not None:
            taken = facts.num_clients + held_out.num_natural
            client, strangers = clients_of_own_test(dataset, rows, roles.holder, taken)
            owned |= plan.natural and dataset.test.client is not None
        unseen = jnp.full(len(dataset.test), -1, jnp.int32)
        tables = tables | {
            "test_index": jnp.concatenate([len(truth) + row, tables["test_index"]]),
            "test_client": jnp.concatenate([client, tables["test_client"]]),
            "num_test": tables["num_test"] + row.size,  # all of these are real
            "observed": jnp.concatenate([tables["observed"], unseen]),
        }
        splits.append(dataset.test.x)
        truth = np.concatenate([truth, dataset.test.y])
    tables |= {"num_new_clients": held_out.num_natural + strangers, "owned_test": owned}
    return splits, jnp.asarray(truth, jnp.int32), tables
