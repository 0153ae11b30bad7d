"""Weak labels: what clients know about examples whose class they do not see.

A coarse label comes from another label space (FedMT, arXiv 2210.02042), a set with known class shares from nothing but
counting (FedUL, arXiv 2204.03304). Both are the class seen through a channel: the federation says for every client
which observation each example gave, and the matrix behind it. Shapes: C clients, n rows of the largest client, O
observations (padded to the largest client's), K classes, N training examples, E entries dealt to clients.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.data.correspondence import CORRESPONDENCES, overlapping
from fedjax_ssl.data.correspondence import correspondence as correspondence_named
from fedjax_ssl.data.federation.dealing import count_groups
from fedjax_ssl.data.federation.pool import Bounds
from fedjax_ssl.registry import check_known


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeakLabels:
    """Weak labels of a federation. An example may be in several sets of its client: then it has several entries."""

    labels: Int[Array, "C n"]  # along `FederatedData.index`: observation of each entry, -1 = none
    num_examples: Int[Array, " C"]  # entries with an observation; in `index` they follow the labelled ones
    num_observations: Int[Array, " C"]
    from_sets: Bool[Array, " C"]  # observations are sets; False: coarse labels
    matrix: Float[Array, "C O K"]  # sets: class shares of each set, rows sum to 1; coarse labels: P(label | class),
    # columns sum to 1, all zero where it is not known
    share: Float[Array, "C O"]  # share of each set in the client's examples; 1 for coarse labels
    prior: Float[Array, " K"]  # class shares where the classifier will be used

    @property
    def has_coarse(self) -> Bool[Array, " C"]:
        """Clients with coarse labels."""
        return (self.num_examples > 0) & ~self.from_sets

    @property
    def has_known_correspondence(self) -> Bool[Array, " C"]:
        """Clients with coarse labels of which is known how they go with the classes."""
        return self.has_coarse & jnp.any(self.matrix > 0, axis=(-2, -1))


class Entries(NamedTuple):
    """Training examples as they are dealt to clients."""

    client: Int[Array, " E"]  # -1 = no entry
    row: Int[Array, " E"]  # of the training examples
    observation: Int[Array, " E"]  # -1 = none
    labelled: Bool[Array, " E"] | None = None  # the client sees the class label of this entry; None: not decided yet


class OwnWeakLabels(NamedTuple):
    """Weak labels that came with the dataset; None where it has none of that kind."""

    coarse: Int[np.ndarray, " N"] | None = None
    num_coarse: int = 0
    correspondence: Float[np.ndarray, "J K"] | None = None  # P(coarse label | class); None: nobody knows it
    sets: Int[np.ndarray, " N"] | None = None  # numbered within each natural client, -1 = in no set
    set_shares: Float[np.ndarray, "G O K"] | None = None  # class shares of each natural client's sets, 0 on padding


class Holdings(NamedTuple):
    """The dealt training examples, before anything is hidden; those that are dealt again follow the N others."""

    client: Int[Array, " N"]  # -1 = nobody's
    labels: Int[Array, " N"]  # -1 = no label exists
    members: Bool[Array, " C"]  # clients that a rule is about
    num_classes: int
    own: OwnWeakLabels = OwnWeakLabels()
    labelled: Bool[Array, " N"] | None = None  # dealt as labelled ones, by a partition that tells them apart

    @property
    def eligible(self) -> Bool[Array, " N"]:
        """Examples of the members that have a label."""
        return (self.client >= 0) & (self.labels >= 0) & self.members[jnp.maximum(self.client, 0)]

    @property
    def cell(self) -> Int[Array, " N"]:
        """The (client, class) cell of every eligible example, -1 elsewhere."""
        return jnp.where(self.eligible, self.client * self.num_classes + self.labels, -1)


class Observed(NamedTuple):
    """What a rule says about its clients; zero for all others."""

    entries: Entries
    num_observations: Int[Array, " C"]
    from_sets: Bool[Array, " C"]
    matrix: Float[Array, "C O K"]
    share: Float[Array, "C O"]


class WeakRule(NamedTuple):
    """A rule by which some clients get weak labels."""

    observe: Callable[[Key[Array, ""], Holdings], Observed]
    largest: Callable[[Bounds, int], int]  # (client sizes, K) -> bound of entries per client
    coarse_names: Callable[[int], tuple[str, ...]] | None = None  # K -> of its coarse labels; None: the dataset's own


def coarse_labels(correspondence: str, overlap: float = 0.0) -> WeakRule:
    """Every example shows a label of another space, drawn once with the probabilities of its class.

    Args:
        correspondence: a name that `fedjax_ssl.data.correspondence` knows, or "own": the labels that the dataset has.
        overlap: this share of the labels is uniform over the coarse classes, in [0, 1); not for "own".

    Raises:
        ValueError: the overlap is outside what is allowed.
    """
    check_known("correspondence", correspondence, (*CORRESPONDENCES, "own"))
    if not 0 <= overlap < 1 or (overlap and correspondence == "own"):
        raise ValueError(f"overlap is {overlap}; it must be in [0, 1), and 0 where the dataset's own labels are used")

    def observe(key: Key[Array, ""], holdings: Holdings) -> Observed:
        if correspondence == "own":
            return _own_coarse_labels(holdings)
        matrix = overlapping(correspondence_named(correspondence, holdings.num_classes).matrix, overlap)
        with np.errstate(divide="ignore"):
            logits = jnp.asarray(np.log(matrix), jnp.float32).T
        drawn = drawn_observations(key, logits[jnp.maximum(holdings.labels, 0)])
        return _coarse(holdings, jnp.where(holdings.labels >= 0, drawn, -1), matrix)

    def coarse_names(num_classes: int) -> tuple[str, ...]:
        return correspondence_named(correspondence, num_classes).names

    named = None if correspondence == "own" else coarse_names
    return WeakRule(observe, lambda sizes, num_classes: sizes.largest, named)


def drawn_observations(key: Key[Array, ""], logits: Float[Array, "N O"]) -> Int[Array, " N"]:
    """One observation for every example; it depends on the key and the example's place alone."""
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(logits.shape[0], dtype=jnp.int32))
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def _own_coarse_labels(holdings: Holdings) -> Observed:
    own = holdings.own
    if own.coarse is None:
        raise ValueError("the dataset has no coarse labels of its own; name a correspondence, such as 'parity'")
    unknown = np.zeros((own.num_coarse, holdings.num_classes))
    return _coarse(holdings, jnp.asarray(own.coarse), unknown if own.correspondence is None else own.correspondence)


def _coarse(holdings: Holdings, observation: Array, matrix: Float[np.ndarray, "J K"]) -> Observed:
    members, client, num_coarse = holdings.members, holdings.client, matrix.shape[0]
    mine = (client >= 0) & members[jnp.maximum(client, 0)]
    rows = jnp.arange(client.shape[0], dtype=jnp.int32)
    return Observed(
        Entries(jnp.where(mine, client, -1), rows, jnp.where(mine, observation, -1)),
        jnp.where(members, num_coarse, 0),
        jnp.zeros_like(members),
        jnp.where(members[:, None, None], jnp.asarray(matrix, jnp.float32), 0.0),
        jnp.where(members[:, None], jnp.ones(num_coarse, jnp.float32), 0.0),
    )


def given() -> WeakRule:
    """What came with the dataset: sets at the clients whose class shares are given, coarse labels at all others.

    Clients are the natural ones, all of them.
    """

    def observe(key: Key[Array, ""], holdings: Holdings) -> Observed:
        own, members = holdings.own, holdings.members
        nothing = _coarse(holdings, jnp.full_like(holdings.client, -1), np.zeros((1, holdings.num_classes)))
        coarse = nothing if own.coarse is None else _own_coarse_labels(holdings)
        if own.sets is None or own.set_shares is None:
            if own.sets is not None:
                raise ValueError(
                    "the dataset has a column of sets but not their class shares; give config.data.proportions, a CSV "
                    "file (docs/data.md)"
                )
            return coarse
        if own.set_shares.shape[0] != members.shape[0]:
            raise ValueError(
                f"class shares are given for {own.set_shares.shape[0]} clients, but {members.shape[0]} train; "
                "supervision 'given' goes with the natural partition and all of its clients"
            )
        filled = own.set_shares.sum(axis=2) > 0  # [C, O]
        has_sets = jnp.asarray(filled.any(axis=1))
        most = max(own.set_shares.shape[1], coarse.matrix.shape[1])
        owner, by_sets = coarse.entries.client, has_sets[jnp.maximum(holdings.client, 0)]
        observation = jnp.where(by_sets, jnp.asarray(own.sets), coarse.entries.observation)
        counted = by_sets & (observation >= 0) & (owner >= 0)
        sizes = count_groups(jnp.where(counted, owner * most + observation, -1), members.shape[0] * most)
        shares = np.pad(own.set_shares, ((0, 0), (0, most - own.set_shares.shape[1]), (0, 0)))
        last = jnp.asarray((filled * np.arange(1, filled.shape[1] + 1)).max(axis=1), jnp.int32)
        padded = _padded(coarse, most)
        return Observed(
            coarse.entries._replace(observation=observation),
            jnp.where(has_sets, last, padded.num_observations),
            has_sets,
            jnp.where(has_sets[:, None, None], jnp.asarray(shares, jnp.float32), padded.matrix),
            jnp.where(has_sets[:, None], normalized(sizes.reshape(-1, most).astype(jnp.float32)), padded.share),
        )

    return WeakRule(observe, lambda sizes, num_classes: sizes.largest)


def together(observed: list[Observed]) -> Observed:
    """The facts of rules about different clients in one table each, and all their entries."""
    most = max(each.matrix.shape[1] for each in observed)
    padded = [_padded(each, most) for each in observed]
    return Observed(
        jax.tree.map(lambda *parts: jnp.concatenate(parts), *(each.entries for each in padded)),
        num_observations=sum((each.num_observations for each in padded[1:]), padded[0].num_observations),
        from_sets=jnp.any(jnp.stack([each.from_sets for each in padded]), axis=0),
        matrix=sum((each.matrix for each in padded[1:]), padded[0].matrix),
        share=sum((each.share for each in padded[1:]), padded[0].share),
    )


def _padded(observed: Observed, num_rows: int) -> Observed:
    missing = num_rows - observed.matrix.shape[1]
    return observed._replace(
        matrix=jnp.pad(observed.matrix, ((0, 0), (0, missing), (0, 0))),
        share=jnp.pad(observed.share, ((0, 0), (0, missing))),
    )


def shares_of_sets(weak: WeakLabels, entries: Entries, counted: Bool[Array, " E"]) -> Float[Array, "C O"]:
    """Share of every set in what trains as members of sets, which examples with a class label do not; 1 elsewhere."""
    num_clients, num_sets = weak.share.shape
    slot = jnp.where(counted, entries.client * num_sets + entries.observation, -1)
    sizes = count_groups(slot, num_clients * num_sets).reshape(num_clients, num_sets)
    return jnp.where(weak.from_sets[:, None], normalized(sizes.astype(jnp.float32)), weak.share)


def perturbed_shares(
    key: Key[Array, ""], shares: Float[Array, "C O K"], noise: float, mode: str = "relative"
) -> Float[Array, "C O K"]:
    """Class shares as somebody who counted badly would report them; the paper's formula is lost, this one is ours.

    Args:
        key: typed PRNG key.
        shares: rows sum to 1, or are zero on padding.
        noise: epsilon; every entry goes up or down with equal chance, by epsilon ("additive") or by epsilon times
            itself ("relative"), is cut to [0, 1], and rows are normalized. A row that is cut to zero becomes uniform.
        mode: "relative" or "additive".
    """
    sign = jnp.where(jax.random.bernoulli(key, shape=shares.shape), 1.0, -1.0)
    moved = shares * (1.0 + noise * sign) if mode == "relative" else shares + noise * sign
    moved = jnp.clip(moved, 0.0, 1.0)
    padding = shares.sum(axis=-1, keepdims=True) == 0
    emptied = moved.sum(axis=-1, keepdims=True) == 0
    return jnp.where(padding, 0.0, normalized(jnp.where(emptied, 1.0, moved)))


def normalized(values: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Rows divided by their sums; rows of zeros stay."""
    total = values.sum(axis=-1, keepdims=True)
    return jnp.where(total > 0, values / jnp.where(total > 0, total, 1.0), 0.0)
