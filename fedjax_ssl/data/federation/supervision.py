"""Supervision: the labels that are visible, and the clients that see them.

A supervision hides labels after the data are dealt; only "server" acts before, because its examples
leave the clients. Only rules that balance classes read labels, like the person who prepares such a
split; "all", "fraction", "total" and "per_client" choose blindly among the examples with a label,
and "planned" by their inputs. A client with too few labels keeps all it has; see
`FederatedData.num_labelled`. Shapes: N training examples, C clients, K classes.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import In, Whole, check_choices, check_whole_numbers
from fedjax_ssl.data.federation import weak_labels
from fedjax_ssl.data.federation.dealing import Ids, Mask, count_groups, int_range, rank_within
from fedjax_ssl.data.federation.federated_data import WeakLabels
from fedjax_ssl.data.federation.pool import (
    Count,
    CountOrNone,
    Entries,
    Holdings,
    check_class_counts,
)
from fedjax_ssl.data.federation.weak_labels import Observed, Protocol, WeakRule, unlabelled_sets
from fedjax_ssl.keys import PRNGKey, named_key
from fedjax_ssl.own_code import check_returned
from fedjax_ssl.registry import Registry

# Class shares at test time: those of the clients' examples, uniform, or those of their sets.
Prior = Literal["train", "uniform", "sets"]


class Supervision(NamedTuple):
    """Policy that keeps labels."""

    # mask of entries whose label the client sees
    keep: Callable[[PRNGKey, Holdings], Mask]
    server_labels: int = 0
    # ^ examples that leave the clients for the server, equally many of every class
    all_at_server: bool = (
        False  # in place of that: every example with a label leaves for the server
    )
    total_labels: int = 0  # labels the whole federation must have, for checks
    labelled_clients: int | None = None  # None: all
    which: str = "first"
    weak: tuple[tuple[WeakRule, int | None], ...] = ()
    # ^ weak rules, each with its number of further clients; None: all clients
    prior: str = "train"
    # ^ class shares at test time: of the clients' examples, "uniform", or the sum of the "sets"
    noise: float = 0.0  # noise in the class shares that clients report

    def check(self, num_clients: int, num_with_label: int) -> None:
        """Raise ValueError if more labels or clients of a kind are needed than exist."""
        with_labels = self.labelled_clients or 0
        if with_labels > num_clients:
            raise ValueError(
                f"labelled_clients={with_labels}, but there are {num_clients} clients; lower it"
            )
        asked = max(self.server_labels, self.total_labels)
        if asked > num_with_label:
            raise ValueError(
                f"labels={asked}, but only {num_with_label} training examples have a label; lower "
                "it"
            )
        with_weak = sum(count or 0 for _, count in self.weak)
        if with_weak + with_labels > num_clients:
            raise ValueError(
                f"{with_labels} clients with labels and {with_weak} with coarse labels or sets are "
                f"asked for, but there are {num_clients} clients; lower these numbers"
            )

    def count_at_server(
        self, class_counts: Sequence[float] | Float[np.ndarray, " K"], there: int
    ) -> int:
        """Count the labels at the server, at most: floor(server_labels / K) of each class, the rest
        dropped (SemiFL's code), or all labels that exist.

        Raises:
            ValueError: that is 0, or some class has fewer examples.
        """
        if self.all_at_server:
            return there
        each = self.server_labels // len(class_counts)
        if self.server_labels and not each:
            raise ValueError(
                f"{self.server_labels} labels are asked for at the server, which has equally many "
                f"of every class; for {len(class_counts)} classes ask for {len(class_counts)} at "
                "least"
            )
        who = "the server, which has equally many of every class, needs"
        check_class_counts(class_counts, each, who, "ask for fewer labels at the server")
        return each * len(class_counts)

    def draw_at_server(self, key: PRNGKey, labels: Ids, available: Mask, num_classes: int) -> Mask:
        """Return the mask of examples that leave the clients for the server."""
        if self.all_at_server:
            return available & (labels >= 0)
        return balanced_draw(key, labels, available, self.server_labels // num_classes)

    def label(self, key: PRNGKey, holdings: Holdings) -> Mask:
        """Return the mask of examples whose label a client sees."""
        num_clients = holdings.members.shape[0]
        members = self._place(key, num_clients) < self._keeping(num_clients)
        holdings = holdings._replace(members=members)
        kept = self.keep(named_key(key, "labels"), holdings)
        check_returned(
            "labels that the supervision keeps", self.keep, kept, holdings.labels.shape, np.bool_
        )
        return kept & holdings.eligible

    def observe(self, key: PRNGKey, holdings: Holdings) -> tuple[Entries, WeakLabels | None]:
        """Return the clients' entries, and their observations of entries without a class label.

        In the second result, `labels` and `num_examples` are still empty; tables are made from the
        entries later.
        """
        num_clients = holdings.members.shape[0]
        rows = int_range(holdings.client.shape[0])
        plain = Entries(holdings.client, rows, jnp.full(rows.shape, -1, jnp.int32))
        if not self.weak:
            return plain, None
        # Every rule gets the next clients in order; the remaining clients have no further
        # observations.
        place = self._place(key, num_clients)
        first = self.labelled_clients or 0
        observed = []
        others = jnp.ones(num_clients, bool)
        for number, (rule, count) in enumerate(self.weak):
            members = jnp.ones(num_clients, bool)
            if count is not None:
                members = (place >= first) & (place < first + count)
                first += count
            others &= ~members
            weak_key = jax.random.fold_in(named_key(key, "weak"), number)
            observed.append(rule.observe(weak_key, holdings._replace(members=members)))
        plain = plain._replace(client=jnp.where(others[plain.client], plain.client, -1))
        weak = weak_labels.together(observed)
        entries = jax.tree.map(lambda *parts: jnp.concatenate(parts), plain, weak.entries)
        if self.noise:
            shown = weak_labels.perturbed_shares(named_key(key, "noise"), weak.matrix, self.noise)
            matrix = jnp.where(weak.from_sets[:, None, None], shown, weak.matrix)
            weak = weak._replace(matrix=matrix)
        facts = weak._asdict()
        del facts["entries"]
        return entries, WeakLabels(
            labels=jnp.zeros((num_clients, 0), jnp.int32),
            num_examples=jnp.zeros(num_clients, jnp.int32),
            prior=self._prior(holdings, weak),
            **facts,
        )

    def _prior(self, holdings: Holdings, weak: Observed) -> Float[Array, " K"]:
        counts = jnp.ones(holdings.num_classes, jnp.float32)
        if self.prior == "train":
            dealt = jnp.where(holdings.client >= 0, holdings.labels, -1)
            counts = count_groups(dealt, holdings.num_classes).astype(counts.dtype)
        if self.prior == "sets":
            observed = jnp.where(weak.entries.observation >= 0, weak.entries.client, -1)
            sizes = jnp.where(weak.from_sets, count_groups(observed, holdings.members.shape[0]), 0)
            counts = jnp.einsum("c,co,cok->k", sizes.astype(counts.dtype), weak.share, weak.matrix)
        return counts / jnp.maximum(counts.sum(), 1e-12)

    def _keeping(self, num_clients: int) -> int:
        """Return the number of clients that keep labels."""
        return num_clients if self.labelled_clients is None else self.labelled_clients

    def _place(self, key: PRNGKey, num_clients: int) -> Int[Array, " C"]:
        """Return the order in which clients get labels, coarse labels and sets."""
        if self.which == "random" and (self.labelled_clients is not None or self.weak):
            return rank_within(named_key(key, "clients"), jnp.zeros(num_clients, jnp.int32))
        return int_range(num_clients)


def all_labels(server_labels: CountOrNone = 0) -> Supervision:
    """Every example keeps its label.

    Args:
        server_labels: labelled examples at the server, as in `server`; the clients have all others.
    """
    return Supervision(
        lambda key, holdings: holdings.eligible,
        server_labels=server_labels,
    )


def no_labels() -> Supervision:
    """No client sees any label."""
    return Supervision(lambda key, holdings: jnp.zeros_like(holdings.eligible))


def per_client(labels: Count, class_balanced: bool = False) -> Supervision:
    """Give every client the same number of labels.

    Args:
        labels: labels of each client, >= 1.
        class_balanced: False: draw uniformly from the client's examples. True: balance labels over
            the client's classes; a remainder goes to random classes.
    """
    return Supervision(
        lambda key, holdings: _rank_in_client(key, holdings, class_balanced) < labels
    )


def per_class(labels: Count) -> Supervision:
    """`labels` labels of every class at every client, or as many as the client has.

    Args:
        labels: labels of each class at a client.
    """
    return Supervision(lambda key, holdings: rank_within(key, holdings.cell) < labels)


def circulant(label_counts: Annotated[Sequence[int], Whole(0)]) -> Supervision:
    """Client c sees label_counts[(k - c) mod K] labels of class k, or as many as it has.

    Args:
        label_counts: [K] by offset from the client's preferred class c mod K.
    """
    given = tuple(label_counts)

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        if len(given) != holdings.num_classes:
            raise ValueError(
                f"label_counts has {len(given)} entries, the data have {holdings.num_classes} "
                "classes"
            )
        offset = (holdings.labels - holdings.client) % holdings.num_classes
        return rank_within(key, holdings.cell) < jnp.asarray(given, jnp.int32)[offset]

    return Supervision(keep)


def fraction(fraction: Annotated[float, In("(0, 1]")], class_balanced: bool = False) -> Supervision:
    """Keep the labels of a fixed fraction of each client's examples, rounded to the nearest
    number and at least one.

    Args:
        fraction: in (0, 1].
        class_balanced: as in `per_client`.
    """

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        sizes = count_groups(holdings.client, holdings.members.shape[0]).astype(jnp.float32)
        quota = jnp.maximum(jnp.floor(fraction * sizes + 0.5), 1.0).astype(jnp.int32)
        return _rank_in_client(key, holdings, class_balanced) < quota[holdings.client]

    return Supervision(keep)


def total(labels: Count, class_balanced: bool = False) -> Supervision:
    """`labels` labels in the whole federation, shared equally between the clients that keep labels.

    Clients take turns, so the number is exact if they have enough examples: if one client lacks
    examples, others get its labels. A remainder goes to random clients.

    Args:
        labels: number of labels n_L, at least 1.
        class_balanced: as in `per_client`, within each client.
    """

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        turn = _rank_in_client(named_key(key, "client"), holdings, class_balanced)
        everyone = jnp.where(holdings.eligible, 0, -1)
        return rank_within(named_key(key, "turn"), everyone, turn) < labels

    return Supervision(keep, total_labels=labels)


def total_per_class(labels: Count) -> Supervision:
    """`labels` labels of every class in the whole federation, at any clients.

    Args:
        labels: labels of each class, at least 1; a class with fewer examples keeps all.
    """
    return Supervision(
        lambda key, holdings: (
            rank_within(key, jnp.where(holdings.eligible, holdings.labels, -1)) < labels
        )
    )


def xclp_noniid(labels: Count, classes: Count = 5) -> Supervision:
    """XCLP's non-iid labels: each client has labels of `classes` classes only, although its data
    may have all.

    In every block of K consecutive clients one set of classes is drawn, and the clients of the
    block take its K cyclic shifts, so that every class is labelled at equally many of them
    (FedAvg+XCLP, the CIFAR-10 splits of the released code). Numbers per class differ by at most
    one; if a client lacks a class, its other drawn classes replace it.

    Args:
        labels: labels of each client that keeps labels, at least 1.
        classes: classes with labels at a client, 1..K.
    """

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        num_classes = holdings.num_classes
        num_clients = holdings.members.shape[0]
        if classes > num_classes:
            raise ValueError(
                f"classes={classes} labelled classes per client, the data have {num_classes}"
            )
        blocks = -(-num_clients // num_classes)
        block_of = jnp.repeat(int_range(blocks), num_classes)
        drawn = (
            rank_within(named_key(key, "classes"), block_of).reshape(blocks, num_classes) < classes
        )
        client = jnp.maximum(holdings.client, 0)
        in_set = drawn[client // num_classes, (holdings.labels - client) % num_classes]
        return in_set & (_rank_in_client(named_key(key, "rank"), holdings, True, in_set) < labels)

    return Supervision(keep)


def class_pairs(labels: Annotated[int, Whole(2)]) -> Supervision:
    """FedRGD's non-iid labels: client c has labels of classes 2c and 2c + 1 (mod K) only, half of
    each.

    Unlabelled examples may have any class of the client's data.

    Args:
        labels: labels of each client that keeps labels, at least 2; an odd one has class 2c.
    """

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        place = (holdings.labels - 2 * holdings.client) % holdings.num_classes
        quota = jnp.where(place == 0, labels - labels // 2, labels // 2)
        return (place < 2) & (rank_within(key, holdings.cell) < quota)

    return Supervision(keep)


def dealt() -> Supervision:
    """Keep the labels of the examples that the partition dealt as labelled ones
    (`paired_dirichlet`, `class_counts`).
    """

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        if holdings.labelled is None:
            raise ValueError(
                "supervision 'dealt' needs a partition that deals labelled examples apart: "
                "'paired_dirichlet', or 'class_counts' with labelled_counts"
            )
        return holdings.labelled

    return Supervision(keep)


def server(labels: Annotated[int | None, Whole()] = None, at_clients: bool = False) -> Supervision:
    """Move floor(labels / K) examples of each class to the server, with their labels; clients see
    none.

    Args:
        labels: labels at the server; by default all examples with a label.
        at_clients: clients see all labels of their examples too, as a supervised reference.
    """
    shown = all_labels() if at_clients else no_labels()
    return shown._replace(server_labels=labels or 0, all_at_server=labels is None)


def coarse(
    correspondence: str = "parity",
    overlap: Annotated[float, In("[0, 1)")] = 0.0,
    server_labels: CountOrNone = 0,
) -> Supervision:
    """Every client sees labels of another space (FedMT); a few class labels may be at the server.

    Args:
        correspondence: "parity", "shape", "superclass", ...: see `fedjax_ssl.data.correspondence`;
            "shape,parity": clients have these spaces in turn; "own": the dataset's coarse labels.
        overlap: this share of the coarse labels is uniform over the coarse classes.
        server_labels: labelled examples at the server, as in `server`.
    """
    rule = weak_labels.coarse_labels(correspondence, overlap)
    return no_labels()._replace(server_labels=server_labels, weak=((rule, None),))


def sets(
    sets: Count = 10,
    set_counts: Annotated[tuple[int, ...] | None, Whole()] = None,
    protocol: Protocol = "dealt",
    shared_shares: bool = False,
    test_prior: Prior = "train",
    noise: Annotated[float, In()] = 0.0,
) -> Supervision:
    """No client sees any label: each has unlabelled sets and knows their class shares (FedUL).

    Args:
        sets: sets of each client.
        set_counts: number of sets of client 0, 1, ..., in place of `sets`.
        protocol: how sets are filled, see `fedjax_ssl.data.federation.unlabelled_sets`.
        shared_shares: all clients have the same wanted shares.
        test_prior: class shares at test time, which clients know: of the "train" examples,
            "uniform", or the sum of the "sets".
        noise: error of the shares that clients know of their sets, see `perturbed_shares`.
    """
    rule = unlabelled_sets(
        (sets,) if set_counts is None else tuple(set_counts), protocol, shared_shares
    )
    return no_labels()._replace(weak=((rule, None),), prior=test_prior, noise=noise)


def as_given(test_prior: Prior = "sets") -> Supervision:
    """Keep the labels that came with the dataset: class labels, coarse labels, and sets with their
    class shares (a CSV file).

    Args:
        test_prior: class shares at test time: the sum of the "sets", "train" or "uniform".
    """
    return all_labels()._replace(weak=((weak_labels.given(), None),), prior=test_prior)


def mixed(
    labels: Annotated[int | None, Whole()] = None,
    coarse_clients: CountOrNone = 0,
    correspondence: str = "parity",
    overlap: Annotated[float, In("[0, 1)")] = 0.0,
    set_clients: CountOrNone = 0,
    sets: Count = 10,
    protocol: Protocol = "dealt",
    test_prior: Prior = "train",
    noise: Annotated[float, In()] = 0.0,
) -> Supervision:
    """Clients of four kinds: `labelled_clients` with class labels, others with coarse labels, sets,
    or nothing.

    Args:
        labels: labels at each client with labels; all of its examples by default.
        coarse_clients: number of clients with coarse labels, after those with labels.
        correspondence: see `coarse`.
        overlap: see `coarse`.
        set_clients: number of clients with sets, after those.
        sets: see `sets`, as the rest.
        protocol: how sets are filled.
        test_prior: class shares at test time.
        noise: noise of the shares of sets.
    """
    base = all_labels() if labels is None else per_client(labels)
    rules = (
        (weak_labels.coarse_labels(correspondence, overlap), coarse_clients),
        (unlabelled_sets((sets,), protocol), set_clients),
    )
    return base._replace(weak=rules, prior=test_prior, noise=noise)


def balanced_draw(key: PRNGKey, labels: Ids, available: Mask, each: int) -> Mask:
    """Return the mask of `each` of the available labelled examples of every class, or of all if
    there are fewer.
    """
    known = available & (labels >= 0)
    in_class = rank_within(named_key(key, "class"), jnp.where(known, labels, -1))
    return known & (in_class < each)


_BY_NAME = (
    per_client,
    per_class,
    circulant,
    fraction,
    total,
    total_per_class,
    xclp_noniid,
    class_pairs,
    dealt,
)
SUPERVISIONS: Registry[Supervision] = Registry(
    "supervision",
    {
        "all": all_labels,
        "none": no_labels,
        **{rule.__name__: rule for rule in (*_BY_NAME, server, coarse, sets)},
        "given": as_given,
        "mixed": mixed,
        "planned": "fedjax_ssl.data.federation.planned:planned",
    },
    given=("points",),
    common={"labelled_clients": int, "which": str},
    makes=Supervision,
)


def build_supervision(
    name: str, *, labelled_clients: int | None = None, which: str = "first", **options: Any
) -> Supervision:
    """Look a supervision up by name.

    Args:
        name: one of `SUPERVISIONS`.
        labelled_clients: number of clients that keep labels; None: all.
        which: "first": clients 0, 1, ...; "random": drawn by key.
        **options: options of the named supervision.

    Raises:
        ValueError: unknown name or option (with the nearest known one), a missing or a bad option.
    """
    check_choices(("first", "random"), which=which)
    built = SUPERVISIONS.build(name, **options)
    if labelled_clients is not None:
        if name in ("server", "none", "coarse", "sets", "given"):
            raise ValueError(
                f"labelled_clients={labelled_clients} has no meaning for supervision {name!r}; "
                "leave it out"
            )
        check_whole_numbers(0 if name == "mixed" else 1, labelled_clients=labelled_clients)
    elif name == "mixed":
        raise ValueError(
            "supervision 'mixed' needs labelled_clients: how many clients have class labels, or 0"
        )
    return built._replace(labelled_clients=labelled_clients, which=which)


def _rank_in_client(
    key: PRNGKey,
    holdings: Holdings,
    class_balanced: bool,
    among: Mask | None = None,
) -> Ids:
    """Return a random place within the client; with `class_balanced`, classes take turns, in a new
    random order each time.
    """
    eligible = holdings.eligible
    if among is not None:
        eligible &= among
    client = jnp.where(eligible, holdings.client, -1)
    turn = rank_within(named_key(key, "class"), holdings.cell) if class_balanced else None
    return rank_within(named_key(key, "client"), client, turn)
