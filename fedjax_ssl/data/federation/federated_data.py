"""The federation on the device: flat arrays of examples, and a padded table of rows per client."""

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data.dataset import distinct, in_one_form

if TYPE_CHECKING:
    from fedjax_ssl.data.dataset import Dataset

_BLOCK = 1 << 12  # rows of a table that are digested at once
_static = partial(dataclasses.field, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeakLabels:
    """Weak labels of a federation. An example in several sets of its client has several entries."""

    labels: Int[Array, "C n"]  # along `FederatedData.index`: observation of each entry, -1 = none
    num_examples: Int[Array, " C"]
    # ^ entries with an observation; in `index` they follow the labelled ones
    num_observations: Int[Array, " C"]
    from_sets: Bool[Array, " C"]  # observations are sets; False: coarse labels
    matrix: Float[Array, "C O K"]
    # ^ sets: class shares of each set, rows sum to 1; coarse labels: P(label | class), columns sum
    # to 1, all zero if unknown
    share: Float[Array, "C O"]  # share of each set in the client's examples; 1 for coarse labels
    prior: Float[Array, " K"]  # class shares at test time

    @property
    def has_coarse(self) -> Bool[Array, " C"]:
        """Mask of clients with coarse labels."""
        return (self.num_examples > 0) & ~self.from_sets

    @property
    def has_known_correspondence(self) -> Bool[Array, " C"]:
        """Mask of clients with coarse labels whose correspondence to classes is known."""
        return self.has_coarse & jnp.any(self.matrix > 0, axis=(-2, -1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FederatedData:
    """A federated dataset as a pytree. N examples (train and test), C clients, n rows of the
    largest client.

    Example:
        >>> digits = fs.load_dataset("digits")
        >>> data = fs.federate(jax.random.key(0), digits, supervision_options={"labels": 5})
        >>> data.index.shape[0], bool((data.num_examples >= data.num_labelled).all())
        (14, True)
        >>> data.summary()["labelled_examples"]
        70
    """

    inputs: Array
    # ^ [N, ...] uint8 as stored, or float32; `LoadedInputs` if most examples stay on the host
    labels: Int[Array, " N"]  # ground truth, -1 = none; only for evaluation and diagnostics
    observed: Int[Array, " N"]
    # ^ label that some client (or the server, for its rows) sees, -1 = none
    index: Int[Array, "C n"]
    # ^ rows of `inputs` per client: labelled ones, then those with a weak label; padding 0
    num_labelled: Int[Array, " C"]
    num_examples: Int[Array, " C"]
    test_index: Int[Array, " T"]
    num_test: Int[Array, ""]
    # ^ the first `num_test` entries are real, the rest is padding; likewise for the next two
    test_client: Int[Array, " T"]
    # ^ owner of each test example, new clients from C on; -1 = none
    valid_index: Int[Array, " V"]
    num_valid: Int[Array, ""]
    server_index: Int[Array, " S"]  # labelled examples that the server holds
    num_server: Int[Array, ""]
    num_classes: int = _static()
    max_labelled: int = _static()  # bound over clients
    max_unlabelled: int = _static()  # bound over clients
    num_new_clients: int = _static(default=0)
    # ^ clients C, C + 1, ... that have test examples but train on nothing
    min_labelled: int = _static(default=1)  # bound over clients that have labels
    num_parts: int = _static(default=1)
    # ^ parts of equal size, in which the unlabelled examples in `index` arrive (streaming)
    rounds_per_part: int | None = _static(default=None)  # None: rounds of the run // num_parts
    weak: WeakLabels | None = None  # coarse labels and sets; None if no client has any
    coarse_names: tuple[str, ...] = _static(default=())
    # ^ names of the coarse labels, if they have names
    owned_test: bool = _static(default=False)
    # ^ test examples have owners, see `test_client`

    @property
    def num_clients(self) -> int:
        """Number of clients C."""
        return self.index.shape[-2]

    @property
    def max_examples(self) -> int:
        """Width n of `index`, at least the number of examples of the largest client."""
        return self.index.shape[-1]

    @property
    def observed_by_clients(self) -> Int[Array, "C n"]:
        """Return the class labels that each client sees, -1 = none or padding.

        If an example is dealt to several clients, or twice to one, it may have a label in one place
        only.
        """
        column = jnp.arange(self.max_examples, dtype=jnp.int32)
        return jnp.where(column < self.num_labelled[:, None], self.observed[self.index], -1)

    @property
    def max_unlabelled_at_once(self) -> int:
        """Bound over clients of the unlabelled examples that a client has in a round, which are one
        part of all.
        """
        return -(-self.max_unlabelled // self.num_parts)

    @property
    def max_known(self) -> int:
        """Bound over clients of the number of examples with a class label or a weak label."""
        return self.max_labelled if self.weak is None else self.max_examples

    def summary(self) -> dict[str, int]:
        """Return counts for printing, read back from the device (so not inside jit)."""
        sizes = np.asarray(self.num_examples)
        labelled = np.asarray(self.num_labelled)
        dealt = real_rows(self.index, self.num_examples)
        tested = real_rows(self.test_index, self.num_test)
        valid = real_rows(self.valid_index, self.num_valid)
        server = real_rows(self.server_index, self.num_server)
        used = np.concatenate([dealt, tested, valid, server])
        # Only test examples with a true label are scored. A client may have examples twice if sets
        # overlap.
        scored = int((np.asarray(self.labels)[tested] >= 0).sum())
        twice = int((np.bincount(dealt) > 1).sum()) if self.weak is None else 0
        return {
            "clients": self.num_clients,
            "labelled_clients": int((labelled > 0).sum()),
            "classes": self.num_classes,
            "train_examples": int(sizes.sum()),
            "labelled_examples": int(labelled.sum()),
            **self._weak_summary(),
            "smallest_client": int(sizes.min(initial=sizes.max(initial=0))),
            "largest_client": int(sizes.max(initial=0)),
            "server_examples": len(server),
            "validation_examples": len(valid),
            "test_examples": len(tested),
            **({} if scored == len(tested) else {"labelled_test_examples": scored}),
            "unused_examples": int((np.bincount(used, minlength=self.inputs.shape[0]) == 0).sum()),
            **({"examples_dealt_twice": twice} if twice else {}),
            "new_clients": self.num_new_clients,
        }

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of labels: clients' class "labels", the "server"'s, "coarse" labels,
        "sets"; not in jit.
        """
        weak = self._weak_summary()
        counts = {
            "labels": np.asarray(self.num_labelled).sum(),
            "server": np.asarray(self.num_server),
            "coarse": weak.get("clients_with_coarse_labels"),
            "sets": weak.get("clients_with_sets"),
        }
        return tuple(kind for kind, count in counts.items() if count)

    def _weak_summary(self) -> dict[str, int]:
        if self.weak is None:
            return {}
        known = np.asarray(self.weak.num_examples) > 0
        sets = np.asarray(self.weak.from_sets)
        return {
            "clients_with_coarse_labels": int((known & ~sets).sum()),
            "clients_with_sets": int((known & sets).sum()),
        }


def real_rows(table: Array | np.ndarray, count: Array | np.ndarray) -> Int[np.ndarray, " r"]:
    """Return the real rows of a padded table."""
    return np.asarray(table)[np.arange(table.shape[-1]) < np.asarray(count)[..., None]]


def what_is_compared(dataset: "Dataset", data: FederatedData) -> dict[str, Any]:
    """Return the facts that make runs comparable seed by seed: their test examples, and their
    number of labels.

    Args:
        dataset: dataset of the federation, as it was read.
        data: one federation, not traced.

    Returns:
        "test_fingerprint": a digest of the contents of the test examples and their labels, and
        "labels_seen": class labels at the clients and the server.
    """
    digest = hashlib.sha256()
    rows = np.sort(real_rows(data.test_index, data.num_test))
    first = len(dataset.train)
    for split, own in (
        (dataset.train, rows[rows < first]),
        (dataset.test, rows[rows >= first] - first),
    ):
        for part in np.split(own, range(_BLOCK, len(own), _BLOCK)):
            if split is None or not len(part):
                continue
            arrays = (split.x[part].reshape(len(part), -1), split.y[part, None])
            digest.update(np.hstack([array.view(np.uint8) for array in arrays]).tobytes())
    seen = int(np.asarray(data.num_labelled).sum()) + int(data.num_server)
    return {"test_fingerprint": digest.hexdigest()[:16], "labels_seen": seen}


def pooled(federation: FederatedData, tested: bool) -> FederatedData:
    """Bring all examples, the server's too, to one client.

    Visible class labels stay visible. Weak labels and parts are left out, because they belong to
    clients.

    Args:
        federation: federation with several clients; it may be traced.
        tested: whether training clients may have test examples; then they are numbered from 1 on,
            before the clients that only have test examples.
    """
    column = jnp.arange(federation.max_examples, dtype=jnp.int32)
    place = jnp.arange(federation.server_index.shape[-1], dtype=jnp.int32)
    at_server = place < federation.num_server
    real = (column < federation.num_examples[:, None]).ravel()
    labelled = (column < federation.num_labelled[:, None]).ravel()
    real = jnp.concatenate([real, at_server])
    labelled = jnp.concatenate([labelled, at_server])
    rows = jnp.concatenate([federation.index.ravel(), federation.server_index])
    order = jnp.argsort(2 - real.astype(jnp.int32) - labelled.astype(jnp.int32), stable=True)
    num_labelled = labelled.sum(dtype=jnp.int32)
    num_examples = real.sum(dtype=jnp.int32)
    clients = federation.num_clients
    width = rows.shape[0]
    most_labelled = clients * federation.max_labelled + place.shape[0]
    most_unlabelled = clients * federation.max_unlabelled
    if not isinstance(num_examples, jax.core.Tracer):
        width = int(num_examples)
        most_labelled = int(num_labelled)
        most_unlabelled = width - most_labelled
    first = 0 if tested else clients
    owner = federation.test_client
    return dataclasses.replace(
        federation,
        index=jnp.where(real, rows, 0)[order][None, :width],
        num_labelled=num_labelled[None],
        num_examples=num_examples[None],
        test_client=jnp.where(owner >= first, owner - first + 1, -1),
        server_index=jnp.zeros(0, jnp.int32),
        num_server=jnp.zeros((), jnp.int32),
        max_labelled=most_labelled,
        max_unlabelled=most_unlabelled,
        num_new_clients=federation.num_new_clients + clients - first,
        num_parts=1,
        rounds_per_part=None,
        weak=None,
    )


def of_one_shape(federations: Sequence[FederatedData]) -> list[FederatedData]:
    """Return the federations with tables of equal width, so that they can share compiled programs.

    Args:
        federations: federations of equally many clients, and with the same further static fields.
    """
    bounds: Any = {
        "max_labelled": max(one.max_labelled for one in federations),
        "max_unlabelled": max(one.max_unlabelled for one in federations),
        "min_labelled": min(one.min_labelled for one in federations),
    }
    alike = [dataclasses.replace(one, **bounds) for one in federations]
    widths = jax.tree.map(lambda *tables: max(table.shape[-1:] for table in tables), *alike)

    def wider(path: Any, table: Array, width: tuple[int, ...]) -> Array:
        if table.shape[-1:] == width:
            return table
        beside = [(0, 0)] * (table.ndim - 1) + [(0, width[0] - table.shape[-1])]
        return jnp.pad(table, beside, constant_values=-(path[-1].name in ("test_client", "labels")))

    return [jax.tree.map_with_path(wider, one, widths) for one in alike]


def validate(data: FederatedData, truth_required: bool = True) -> None:
    """Check on the host that a federation can be trained and evaluated on.

    Args:
        data: one federation, not a stack of them and not traced.
        truth_required: False if test examples are to be labelled, not scored.

    Raises:
        ValueError: no clients, a client without examples, no test examples, parts that are all
            empty, or parts of clients that have weak labels for some of their examples.
    """
    sizes = np.asarray(data.num_examples)
    if sizes.size == 0 or sizes.sum() == 0:
        raise ValueError(
            "the federation is empty: no client has a training example; hold out less or use "
            "more data"
        )
    empty = np.flatnonzero(sizes == 0)
    # A client may be empty if the server took all its examples, for example if that client is the
    # server.
    if empty.size and not int(data.num_server):
        raise ValueError(
            f"{empty.size} of {sizes.size} clients have no training example (the first is client "
            f"{empty[0]}); use fewer clients, hold out less, or a partition with a minimum "
            "(dirichlet with min_examples)"
        )
    if int(data.num_test) == 0:
        raise ValueError(
            "there are no test examples; hold some out: --data.test_fraction=0.2, or test_clients, "
            "left_out_client, client_test_fraction (a larger share where groups stay together)"
        )
    unlabelled = sizes - np.asarray(data.num_labelled)
    if data.num_parts > 1 and not unlabelled.any():
        raise ValueError(
            f"unlabelled examples come in {data.num_parts} parts, but no client has that many of "
            "any class: every part is empty; lower config.partition.parts"
        )
    if data.num_parts > 1 and data.weak is not None:
        known = np.asarray(data.weak.num_examples)
        partly = np.flatnonzero((known > 0) & (known < unlabelled))
        if partly.size:
            raise ValueError(
                f"unlabelled examples come in {data.num_parts} parts, but client {partly[0]} has "
                f"weak labels for {known[partly[0]]} of its {unlabelled[partly[0]]} only; give "
                "them to all of a client's examples or to none, or set config.partition.parts=1"
            )
    if truth_required and not (np.asarray(data.labels)[np.asarray(data.test_index)] >= 0).any():
        raise ValueError(
            f"none of the {int(data.num_test)} test examples has a label to be scored by"
        )


def rounds_of_a_part(parts: int, given: int | None, num_rounds: int) -> int:
    """Return the number of rounds of a part; the last one stays to the end.

    Args:
        parts: T.
        given: the config's value; None: the rounds of the run divided by the parts.
        num_rounds: number of rounds of the run.
    """
    return given or max(num_rounds // parts, 1)


def natural_names(dataset: "Dataset") -> list[str]:
    """Return the names of the dataset's own clients with training examples, in their order; an
    empty list if it has none.
    """
    if dataset.train.client is None:
        return []
    return [_name(dataset, number) for number in distinct(dataset.train.client).tolist()]


def client_number(names: Sequence[str], client: int | str) -> int | None:
    """Find a client by its name or, if no name is a number, by its number.

    Args:
        names: names of the clients, in their order.
        client: a name ("north", "02"; 2 and 2.0 mean "2"), or a number, counted from 0.

    Returns:
        Its place in `names`; None if it does not exist.
    """
    client = in_one_form(str(client))
    known = list(map(in_one_form, names))
    if client not in known and not any(name.isdecimal() for name in known):
        known = [str(place) for place in range(len(known))]
    return known.index(client) if client in known else None


def client_names(dataset: "Dataset", federation: FederatedData, natural: bool = True) -> list[str]:
    """Return the names of all clients of a federation: those that train, and those that only have
    test examples.

    Args:
        dataset: dataset of the federation.
        federation: not traced.
        natural: whether its clients are the dataset's own; otherwise their numbers are their names.

    Returns:
        A name for each of `num_clients + num_new_clients`; the number of a client whose examples
        are all held out.
    """
    count = federation.num_clients + federation.num_new_clients
    if not natural or dataset.train.client is None:
        return [str(client) for client in range(count)]
    nobody = np.full(0 if dataset.test is None else len(dataset.test), -1, np.int32)
    of_test = nobody if dataset.test is None else dataset.test.client
    owner = np.concatenate([dataset.train.client, nobody if of_test is None else of_test])
    # A client is identified by its first test example, or otherwise by its first training example.
    row = np.full(count, -1)
    trained = np.flatnonzero(np.asarray(federation.num_examples))
    row[trained] = np.asarray(federation.index)[trained, 0]
    tested, first = np.unique(np.asarray(federation.test_client), return_index=True)
    of_client = tested >= 0
    row[tested[of_client]] = np.asarray(federation.test_index)[first[of_client]]
    numbers = np.where(row >= 0, owner[row], -1).tolist()
    names = [
        str(client) if number < 0 else _name(dataset, number)
        for client, number in enumerate(numbers)
    ]
    # Clients that a split file combines from several natural ones, or that are pooled, have numbers
    # as names.
    sizes = np.asarray(federation.num_examples)
    of_rows = owner[np.asarray(federation.index)]
    real = np.arange(federation.max_examples) < sizes[:, None]
    mixed = (real & (of_rows != of_rows[:, :1])).any(axis=1)
    for client in np.flatnonzero(mixed).tolist():
        names[client] = "pooled" if federation.num_clients == 1 else str(client)
    return names


def _name(dataset: "Dataset", number: int) -> str:
    return str(number) if dataset.client_names is None else dataset.client_names[number]
