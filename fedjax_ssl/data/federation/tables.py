"""Arrays of a federation while it is drawn: its plan, the role of every example, and the tables of
these roles.
"""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Array, Int

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
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
    """All facts about a federation except its key and arrays."""

    facts: Facts
    supervision: Supervision
    validates: bool  # whether a share of the labelled examples is held out for validation
    partition: Partition
    held_out: HeldOut
    num_train: int  # examples of the dataset's own training split
    natural: bool  # clients are the dataset's own


class Widths(NamedTuple):
    """Static sizes of the tables."""

    max_labelled: int
    max_unlabelled: int
    examples: int
    test: int
    valid: int
    server: int
    min_labelled: int = 1  # fewest labels of a client with labels


class Roles(NamedTuple):
    """The use of every training example."""

    holder: Ids  # client that has it, for training or as a test example; -1 = none
    entries: Entries  # the examples as clients train on them
    weak: WeakLabels | None
    test: Mask
    valid: Mask
    server: Mask


def find_widths(plan: Plan, roles: Roles) -> Widths:
    """Choose widths for the tables of drawn roles."""
    client = np.asarray(roles.entries.client)
    labelled = np.asarray(roles.entries.labelled)
    counts = np.bincount(client[client >= 0], minlength=plan.facts.num_clients)
    known = np.bincount(client[labelled & (client >= 0)], minlength=plan.facts.num_clients)
    # The largest natural client trains under most keys, so its size needs no extra room.
    max_labelled, max_unlabelled, examples = (
        _width(sizes, exact=plan.natural) for sizes in (known, counts - known, counts)
    )
    test, valid, server = (
        int(np.asarray(mask).sum()) for mask in (roles.test, roles.valid, roles.server)
    )
    return Widths(
        max_labelled,
        max_unlabelled,
        min(examples, max_labelled + max_unlabelled),
        _roomy(test) if plan.held_out.num_natural else test,
        valid,
        server,
        int(known[known > 0].min()) if known.any() else 1,
    )


def _width(counts: Int[np.ndarray, " C"], exact: bool = False) -> int:
    """Return the largest count, with room for other keys if clients differ."""
    most = int(counts.max())
    return most if exact or most == counts[counts > 0].min(initial=most) else _roomy(most)


def _roomy(count: int) -> int:
    """Round up by at most an eighth, so that most keys have the same width and share a program."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


def tabulate(
    roles: Roles, labels: Int[np.ndarray, " N"], *, num_clients: int, widths: Widths
) -> dict[str, Any]:
    """Make all index tables and counts of a federation, by the names of `FederatedData`.

    Args:
        roles: roles in NumPy arrays, like the result.
        labels: labels of the training examples.
        num_clients: C.
        widths: widths of the tables.
    """
    entries = roles.entries
    labelled = np.asarray(entries.labelled)
    weak = roles.weak
    held = entries.client >= 0
    # An example that is dealt twice may have its label at one client only.
    seen = roles.server.copy()
    seen[entries.row[labelled & held]] = True
    weakly = ~labelled & (entries.observation >= 0)

    def count(chosen: Any) -> Int[np.ndarray, " C"]:
        clients = entries.client[chosen & held]
        return np.bincount(clients, minlength=num_clients).astype(np.int32)

    num_examples = count(held)
    order = np.lexsort((~weakly, ~labelled, np.where(held, entries.client, num_clients)))
    start = np.cumsum(num_examples) - num_examples
    column = np.arange(max(widths.examples, 1))
    place = order[np.minimum(start[:, None] + column, len(order) - 1)]
    real = column < num_examples[:, None]
    tables: dict[str, Any] = {
        "observed": np.where(seen, labels, -1).astype(np.int32),
        "index": np.where(real, entries.row[place], 0),
        "num_labelled": count(labelled),
        "num_examples": num_examples,
        "weak": weak,
    }
    if weak is not None:
        tables["weak"] = dataclasses.replace(
            weak,
            labels=cast(Array, np.where(real & weakly[place], entries.observation[place], -1)),
            num_examples=cast(Array, count(weakly)),
            share=jax.jit(shares_of_sets)(weak, entries, weakly),
        )
    for name, mask, width in (
        ("test", roles.test, widths.test),
        ("valid", roles.valid, widths.valid),
        ("server", roles.server, widths.server),
    ):
        rows = np.flatnonzero(mask)
        tables[f"{name}_index"] = np.pad(rows, (0, width - len(rows))).astype(np.int32)
        tables[f"num_{name}"] = np.int32(len(rows))
    tested = np.arange(widths.test) < tables["num_test"]
    tables["test_client"] = np.where(tested, roles.holder[tables["test_index"]], -1)
    return tables


def with_own_test(
    key: PRNGKey, dataset: Dataset, plan: Plan, roles: Roles, tables: dict[str, Any]
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Add the dataset's own test examples to the tables, if it is tested on them.

    Returns:
        (examples of the splits in use, tables with the labels of them all and two further fields of
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
        row = rows
        client = np.full(rows.size, -1)
        if held_out.balanced_test:
            owned = True
            drawn = balanced_test_examples(
                named_key(key, "test"), dataset.test.y, facts.num_clients, facts.num_classes
            )
            row, client = map(np.asarray, drawn)
        elif plan.natural or held_out.left_out_client is not None:
            taken = facts.num_clients + held_out.num_natural
            client, strangers = clients_of_own_test(dataset, rows, np.asarray(roles.holder), taken)
            owned |= plan.natural and dataset.test.client is not None
        unseen = np.full(len(dataset.test), -1)
        more = {
            "test_index": np.concatenate([len(truth) + row, tables["test_index"]]),
            "test_client": np.concatenate([client, tables["test_client"]]),
            "num_test": tables["num_test"] + row.size,  # all of these are real
            "observed": np.concatenate([tables["observed"], unseen]),
        }
        tables = tables | {name: values.astype(np.int32) for name, values in more.items()}
        splits.append(dataset.test.x)
        truth = np.concatenate([truth, dataset.test.y])
    tables = jax.device_put(tables | {"labels": truth.astype(np.int32)})
    return splits, tables | {
        "num_new_clients": held_out.num_natural + strangers,
        "owned_test": owned,
    }
