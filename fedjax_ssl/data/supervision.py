"""Which labels are seen, and by whom.

A supervision hides labels after the data have been dealt; only "server" acts before, because its examples
leave the clients. Only the rules that balance classes look at labels, as the person who prepares such a split
would; "all", "fraction", "total" and "per_client" choose blindly among the examples that have a label. A
client with fewer labels than asked for keeps all it has; `FederatedData.num_labelled` tells. Shapes: N
training examples, C clients, K classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.data.partition import Bounds, build_by_name, count_groups, rank_within
from fedjax_ssl.keys import named_key


class Holdings(NamedTuple):
    """The dealt training examples."""

    client: Int[Array, " N"]  # -1 = nobody's
    labels: Int[Array, " N"]  # -1 = no label exists
    may_label: Bool[Array, " C"]  # clients that may keep labels
    num_classes: int


class LabelBounds(NamedTuple):
    """Labelled and unlabelled examples of a client, for every key."""

    max_labelled: int
    max_unlabelled: int


class Supervision(NamedTuple):
    """How labels are kept."""

    # True where the client sees the label
    keep: Callable[[Key[Array, ""], Holdings], Bool[Array, " N"]]
    # (client sizes, clients that keep labels, K) -> bound of labels per client
    max_labelled: Callable[[Bounds, int, int], int]
    # (size, clients that keep labels) -> so many a client surely keeps, if all its examples have a label
    sure_labelled: Callable[[int, int], int]
    server_labels: int = 0  # class-balanced examples that leave the clients for the server
    total_labels: int = 0  # labels the whole federation must have, for checks
    labelled_clients: int | None = None  # None: all
    which: str = "first"

    def check(self, num_clients: int, num_with_label: int) -> None:
        """Raises ValueError where more labels or labelled clients are asked for than exist."""
        if self.labelled_clients is not None and self.labelled_clients > num_clients:
            raise ValueError(f"labelled_clients={self.labelled_clients}, but there are {num_clients} clients; lower it")
        asked = max(self.server_labels, self.total_labels)
        if asked > num_with_label:
            raise ValueError(f"labels={asked}, but only {num_with_label} training examples have a label; lower it")

    def bounds(self, sizes: Bounds, num_clients: int, num_classes: int, every_example_labelled: bool) -> LabelBounds:
        """Bounds for clients of these sizes; `every_example_labelled`: no ground-truth label is missing."""
        keeping = num_clients if self.labelled_clients is None else self.labelled_clients
        trusted = sizes if every_example_labelled else Bounds(0, sizes.largest)
        sure = self.sure_labelled(sizes.largest, keeping) if every_example_labelled and keeping == num_clients else 0
        most = self.max_labelled(trusted, keeping, num_classes)
        return LabelBounds(min(most, sizes.largest), sizes.largest - sure)

    def label(
        self,
        key: Key[Array, ""],
        client: Int[Array, " N"],
        labels: Int[Array, " N"],
        num_clients: int,
        num_classes: int,
    ) -> Bool[Array, " N"]:
        """True where a client sees the label of its example.

        Args:
            key: typed PRNG key.
            client: int32, -1 = nobody's.
            labels: int32 ground truth, -1 = none.
            num_clients: static C.
            num_classes: static K.
        """
        place = jnp.arange(num_clients, dtype=jnp.int32)
        if self.labelled_clients is not None and self.which == "random":
            place = rank_within(named_key(key, "clients"), jnp.zeros(num_clients, jnp.int32))
        limit = num_clients if self.labelled_clients is None else self.labelled_clients
        holdings = Holdings(client, labels, place < limit, num_classes)
        return self.keep(named_key(key, "labels"), holdings) & _eligible(holdings)


def all_labels() -> Supervision:
    """Every example keeps its label."""
    return Supervision(
        lambda key, holdings: _eligible(holdings),
        lambda sizes, keeping, num_classes: sizes.largest,
        lambda size, keeping: size,
    )


def no_labels() -> Supervision:
    """No client sees any label."""
    return Supervision(
        lambda key, holdings: jnp.zeros_like(_eligible(holdings)),
        lambda sizes, keeping, num_classes: 0,
        lambda size, keeping: 0,
    )


def per_client(labels: int, class_balanced: bool = False) -> Supervision:
    """The same number of labels at every client.

    Args:
        labels: labels of each client, >= 1.
        class_balanced: False: drawn uniformly from the client's examples. True: as equal as possible over the
            classes that the client has, the odd ones to random classes.
    """
    _at_least_one("labels", labels)

    def keep(key: Key[Array, ""], holdings: Holdings) -> Bool[Array, " N"]:
        return _rank_in_client(key, holdings, class_balanced) < labels

    return Supervision(keep, lambda sizes, keeping, num_classes: labels, lambda size, keeping: min(labels, size))


def per_class(labels: int) -> Supervision:
    """`labels` labels of every class at every client, as far as the client has that class."""
    _at_least_one("labels", labels)

    def keep(key: Key[Array, ""], holdings: Holdings) -> Bool[Array, " N"]:
        return rank_within(key, _cell(holdings)) < labels

    # Fewest labels are kept where all of a client's examples are of one class.
    return Supervision(
        keep,
        lambda sizes, keeping, num_classes: labels * num_classes,
        lambda size, keeping: min(labels, size),
    )


def fraction(fraction: float, class_balanced: bool = False) -> Supervision:
    """A share of each client's examples keeps its labels, rounded to the nearest number and at least one.

    Args:
        fraction: in (0, 1].
        class_balanced: as in `per_client`.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}; for no labels use supervision 'none'")

    def keep(key: Key[Array, ""], holdings: Holdings) -> Bool[Array, " N"]:
        sizes = count_groups(holdings.client, holdings.may_label.shape[0]).astype(jnp.float32)
        quota = jnp.maximum(jnp.floor(fraction * sizes + 0.5), 1.0).astype(jnp.int32)
        return _rank_in_client(key, holdings, class_balanced) < quota[jnp.maximum(holdings.client, 0)]

    def nearest(size: int) -> int:
        return max(1, int(np.floor(fraction * size + 0.5)))

    # The traced rule rounds in float32, which may differ by one from Python's.
    return Supervision(
        keep,
        lambda sizes, keeping, num_classes: nearest(sizes.largest) + 1,
        lambda size, keeping: max(nearest(size) - 1, 0),
    )


def total(labels: int, class_balanced: bool = False) -> Supervision:
    """`labels` labels in the whole federation, shared equally between the clients that keep labels.

    Clients take turns, so that the number is exact whenever these clients have enough examples, and what one
    client lacks goes to the others; the odd ones go to random clients.

    Args:
        labels: number of labels n_L, at least 1.
        class_balanced: as in `per_client`, within each client.
    """
    _at_least_one("labels", labels)

    def keep(key: Key[Array, ""], holdings: Holdings) -> Bool[Array, " N"]:
        turn = _rank_in_client(named_key(key, "client"), holdings, class_balanced)
        everyone = jnp.where(_eligible(holdings), 0, -1)
        return rank_within(named_key(key, "turn"), everyone, turn) < labels

    def max_labelled(sizes: Bounds, keeping: int, num_classes: int) -> int:
        each = -(-labels // keeping)
        return each if each <= sizes.smallest else labels

    return Supervision(keep, max_labelled, lambda size, keeping: min(labels // keeping, size), total_labels=labels)


def xclp_noniid(labels: int, classes: int = 5) -> Supervision:
    """XCLP's non-iid labels: each client has labels of `classes` classes only, while its data may hold all.

    In every block of K consecutive clients one set of classes is drawn, and the clients of the block take its
    K cyclic shifts, so that every class is labelled at equally many of them (FedAvg+XCLP, the CIFAR-10 splits
    of the released code). Numbers per class differ by at most one; where a client lacks a class its other
    drawn classes stand in.

    Args:
        labels: labels of each client that keeps labels, at least 1.
        classes: classes with labels at a client, 1..K.
    """
    _at_least_one("labels", labels)
    _at_least_one("classes", classes)

    def keep(key: Key[Array, ""], holdings: Holdings) -> Bool[Array, " N"]:
        num_classes, num_clients = holdings.num_classes, holdings.may_label.shape[0]
        if classes > num_classes:
            raise ValueError(f"classes={classes} labelled classes per client, the data have {num_classes}")
        blocks = -(-num_clients // num_classes)
        block_of = jnp.repeat(jnp.arange(blocks, dtype=jnp.int32), num_classes)
        drawn = rank_within(named_key(key, "classes"), block_of).reshape(blocks, num_classes) < classes
        client = jnp.maximum(holdings.client, 0)
        label = jnp.maximum(holdings.labels, 0)
        in_set = drawn[client // num_classes, (label - client % num_classes) % num_classes]
        return in_set & (_rank_in_client(named_key(key, "rank"), holdings, True, in_set) < labels)

    return Supervision(keep, lambda sizes, keeping, num_classes: labels, lambda size, keeping: 0)


def server(labels: int) -> Supervision:
    """The server holds `labels` class-balanced labelled examples; they leave the clients, who see none."""
    _at_least_one("labels", labels)
    return no_labels()._replace(server_labels=labels)


def balanced_draw(
    key: Key[Array, ""], labels: Int[Array, " N"], available: Bool[Array, " N"], count: int
) -> Bool[Array, " N"]:
    """`count` of the available labelled examples, as equal over classes as the data allow.

    Args:
        key: typed PRNG key.
        labels: int32, -1 = never drawn.
        available: examples that may be drawn.
        count: how many.

    Returns:
        bool [N]; fewer than `count` are True only if there are fewer.
    """
    eligible = available & (labels >= 0)
    in_class = rank_within(named_key(key, "class"), jnp.where(eligible, labels, -1))
    place = rank_within(named_key(key, "turn"), jnp.where(eligible, 0, -1), in_class)
    return eligible & (place < count)


SUPERVISIONS: dict[str, Callable[..., Supervision]] = {
    "all": all_labels,
    "none": no_labels,
    "per_client": per_client,
    "per_class": per_class,
    "fraction": fraction,
    "total": total,
    "xclp_noniid": xclp_noniid,
    "server": server,
}


def available_supervisions() -> tuple[str, ...]:
    """Names that `federate(supervision=...)` accepts."""
    return tuple(SUPERVISIONS)


def build_supervision(
    name: str, *, labelled_clients: int | None = None, which: str = "first", **options: Any
) -> Supervision:
    """Looks a supervision up by name.

    Args:
        name: one of `available_supervisions()`.
        labelled_clients: only so many clients keep labels; None: all.
        which: "first": clients 0, 1, ...; "random": drawn by key.
        **options: of the named supervision.

    Raises:
        ValueError: unknown name or option (with the nearest known one), a missing or a bad option.
    """
    if which not in ("first", "random"):
        raise ValueError(f"which must be 'first' or 'random', got {which!r}")
    built = build_by_name("supervision", SUPERVISIONS, name, options)
    if labelled_clients is None:
        return built
    if name in ("server", "none"):
        raise ValueError(f"labelled_clients={labelled_clients} has no meaning for supervision {name!r}; leave it out")
    _at_least_one("labelled_clients", labelled_clients)
    return built._replace(labelled_clients=labelled_clients, which=which)


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value}")


def _eligible(holdings: Holdings) -> Bool[Array, " N"]:
    keeps = holdings.may_label[jnp.maximum(holdings.client, 0)]
    return (holdings.client >= 0) & (holdings.labels >= 0) & keeps


def _cell(holdings: Holdings) -> Int[Array, " N"]:
    """The (client, class) cell of every example that may be labelled, -1 elsewhere."""
    return jnp.where(_eligible(holdings), holdings.client * holdings.num_classes + holdings.labels, -1)


def _rank_in_client(
    key: Key[Array, ""], holdings: Holdings, class_balanced: bool, among: Bool[Array, " N"] | None = None
) -> Int[Array, " N"]:
    """Random place within the client; `class_balanced`: classes take turns, in random order in every turn."""
    eligible = _eligible(holdings) if among is None else _eligible(holdings) & among
    client = jnp.where(eligible, holdings.client, -1)
    turn = None
    if class_balanced:
        turn = rank_within(named_key(key, "class"), _cell(holdings))
    return rank_within(named_key(key, "client"), client, turn)
