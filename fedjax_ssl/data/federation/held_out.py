"""Hold examples out of training, for test and validation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import Declaration, Each, In, Whole, check_whole_numbers
from fedjax_ssl.data.dataset import Dataset, distinct
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
    count_groups,
    draw_within,
    int_range,
    largest_remainder,
    rank_within,
)
from fedjax_ssl.data.federation.pool import check_class_counts
from fedjax_ssl.keys import PRNGKey, named_key

_SHARE = In("[0, 1)")


def _field(default: Any, meaning: str, allowed: Declaration | None = None, **more: str) -> Any:
    """Declare what a config shows of a field: its default, its meaning and what is allowed."""
    metadata = {"meaning": meaning, "allowed": allowed, **more}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Examples to hold out of training; its fields are settings of `config.data`.

    The test set is the dataset's own, unless one of the first four fields takes it from the
    training examples. Validation examples and examples of `test_fraction` always have a true label
    and are stratified by class.

    Attributes:
        test_clients: number of natural clients, drawn by key, kept out of training; their examples
            are the test set.
        left_out_client: this natural client is kept out of training; all its examples, of both
            splits, are the test set. Its name or, where no name is a number, its number, counted
            from 0 in the order of the dataset's clients.
        test_fraction: share of the labelled training examples that become the test set.
        client_test_fraction: share of each client's examples, drawn blindly, that become the test
            set.
        validation_fraction: share of the then remaining labelled training examples that become the
            validation set.
        fewest_validation: validation examples below which none is held out.
        balanced_test: from the dataset's own test examples, each client draws its own, equally many
            of every class.
        pools: training, validation and test examples of every class, from the dataset's training
            and test examples together; what is left is unused, and all examples without a label are
            for training.
        shuffle_pools: all of a class are shuffled before they are cut into pools; otherwise the
            dataset's own training examples come first, so that the others are mostly test examples.
    """

    test_clients: int = _field(
        0, "whole natural clients, drawn at random, that are the test set", Whole(0)
    )
    left_out_client: int | str | None = _field(
        None, "the natural client that is the test set, by name; by number where no name is one"
    )
    test_fraction: float = _field(
        0.0, "share of the examples held out for testing where the dataset does not", _SHARE
    )
    client_test_fraction: float = _field(
        0.0, "share of every client's examples held out as its test", _SHARE
    )
    validation_fraction: float = _field(
        0.0, "share of the training examples held out for validation", _SHARE
    )
    fewest_validation: int = _field(
        0, "validation examples below which none is held out and the last round counts", Whole(0)
    )
    balanced_test: bool = _field(False, "clients draw test examples, equally many of every class")
    pools: tuple[int, int, int] | None = _field(
        None, "training, validation and test examples of a class, from both splits", Each(Whole(0))
    )
    shuffle_pools: bool = _field(
        False, "pools are drawn at random, not the training examples first", needs="data.pools"
    )

    @property
    def num_natural(self) -> int:
        """Number of natural clients that do not train."""
        return self.test_clients if self.left_out_client is None else 1

    def validates(self, labelled: int) -> bool:
        """Return whether a share of this number of labelled examples is held out for validation."""
        held = int(self.validation_fraction * labelled + 0.5)
        return held > 0 and held >= self.fewest_validation

    def check(self, name: str, num_natural: int, in_groups: bool) -> None:
        """Raise ValueError if the dataset `name` with `num_natural` clients lacks such examples."""
        given = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if allowed := field.metadata["allowed"]:
                allowed.check(field.name, value)
            if field.name in _TEST_SETS:
                given.append(f"{field.name}={value}")
        if self.pools and in_groups:
            raise ValueError(
                f"pools={self.pools} would part groups (patients, copies); use test_fraction "
                "instead"
            )
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give only one of them")
        if self.balanced_test and given:
            raise ValueError(
                "balanced_test draws from the dataset's own test examples; leave it or "
                f"{given[0]} out"
            )
        if self.pools is not None:
            self._check_pool_sizes(tuple(self.pools))
        have = f"has {num_natural}" if num_natural else "has no natural clients"
        if self.test_clients and self.test_clients >= num_natural:
            raise ValueError(
                f"test_clients={self.test_clients}, but dataset {name!r} {have}; at least one "
                "must train"
            )
        if self.left_out_client is not None and num_natural < 2:
            raise ValueError(
                f"left_out_client is given, but dataset {name!r} {have}; at least one other must "
                "train"
            )

    def _check_pool_sizes(self, sizes: Sequence[int]) -> None:
        if len(sizes) != 3:
            raise ValueError(
                f"pools is {sizes}; give training, validation and test examples of every class"
            )
        check_whole_numbers(1, **{"pools[0]": sizes[0], "pools[2]": sizes[2]})
        if self.validation_fraction:
            raise ValueError(
                f"pools={sizes} and validation_fraction={self.validation_fraction}: give only one "
                "of them; the second number of pools is the validation set's"
            )

    def check_pools(self, class_counts: Float[np.ndarray, " K"]) -> None:
        """Raise ValueError if some class has fewer examples than the pools need."""
        asked = self.pools or ()
        who = f"pools={tuple(asked)} ask, of training and test examples together, for"
        check_class_counts(class_counts, sum(asked), who, "lower them")

    def in_pools(self, key: PRNGKey, labels: Ids, num_train: int) -> tuple[Mask, Mask, Mask]:
        """Cut every class into pools.

        Args:
            key: shuffles each class.
            labels: -1 = none; an example without a label is in no pool.
            num_train: examples of the dataset's own training split, which come first unless pools
                are shuffled.

        Returns:
            (held out, validation, test); of what is held out, the rest is unused.
        """
        train, valid, test = self.pools or (0, 0, 0)
        known = labels >= 0
        late = None
        if not self.shuffle_pools:
            late = (int_range(labels.shape[0]) >= num_train).astype(jnp.int32)
        place = rank_within(key, jnp.where(known, labels, -1), late)
        held = known & (place >= train)
        is_valid = place < train + valid
        return held, held & is_valid, held & ~is_valid & (place < train + valid + test)

    def own_test_examples(self, dataset: Dataset) -> Int[np.ndarray, " t"]:
        """Return the rows of the dataset's own test split that are test examples: all, or those of
        the client left out.
        """
        test = dataset.test
        if test is None and self.balanced_test:
            raise ValueError(
                f"balanced_test draws from the dataset's own test examples; {dataset.name!r} has "
                "none"
            )
        none = np.zeros(0, np.int64)
        if test is None or self.test_clients or self.test_fraction or self.client_test_fraction:
            return none
        if self.left_out_client is None:
            return np.arange(len(test))
        if dataset.train.client is None or test.client is None:
            return none
        return np.flatnonzero(test.client == distinct(dataset.train.client)[self.left_out_client])

    def unused_own_test(self, dataset: Dataset) -> list[str]:
        """Return a sentence about the dataset's own test examples that are not used, or "".

        Args:
            dataset: dataset as it is federated; `left_out_client` is a number of its clients.
        """
        if dataset.test is None or self.pools is not None:
            return []
        unused = len(dataset.test) - len(self.own_test_examples(dataset))
        if not unused:
            return []
        asked = next(
            f"data.{name}={value}" for name in _TEST_SETS if (value := getattr(self, name))
        )
        return [
            f"{unused:,} of {len(dataset.test):,} of the data's own test examples are used for "
            f"nothing, because {asked} makes another test set; leave it out to test on them, or "
            "give data.pool_splits=True to take them as examples like the others"
        ]

    def unseen(self, key: PRNGKey, num_natural: int) -> Bool[Array, " G"]:
        """Return the mask of natural clients that do not train, G in all."""
        if self.left_out_client is None:
            return rank_within(key, jnp.zeros(num_natural, jnp.int32)) < self.test_clients
        return int_range(num_natural) == jnp.int32(self.left_out_client)

    def share_of_clients(
        self,
        key: PRNGKey,
        client: Ids,
        num_clients: int,
        group: Ids | None,
    ) -> Mask:
        """Return the share of each client's examples that are its test examples; each client keeps
        at least one.
        """
        size = count_groups(client, num_clients)
        quota = jnp.minimum(_share_of(size, self.client_test_fraction), size - 1)
        return draw_within(key, client, quota, group)


_TEST_SETS = ("test_clients", "left_out_client", "test_fraction", "client_test_fraction", "pools")


def _share_of(count: Array, share: float) -> Array:
    """Return a share of a number, rounded to the nearest whole number."""
    return jnp.floor(share * count.astype(jnp.float32) + 0.5).astype(jnp.int32)


def stratified(
    key: PRNGKey,
    labels: Ids,
    available: Mask,
    num_classes: int,
    share: float,
    in_group: Ids | None = None,
) -> Mask:
    """Draw a random share of the available labelled examples, the same share of every class up to
    rounding.

    Args:
        key: typed PRNG key.
        labels: ground truth, -1 = none.
        available: mask of examples that can be drawn.
        num_classes: K.
        share: in [0, 1).
        in_group: as for `draw_within`.

    Returns:
        bool [N], True for the drawn ones.
    """
    group = jnp.where(available, labels, -1)
    counts = count_groups(group, num_classes)
    total = _share_of(counts.sum(dtype=jnp.int32), share)
    quota = largest_remainder(counts.astype(jnp.float32), total, named_key(key, "ties"))
    return draw_within(named_key(key, "rank"), group, quota, in_group)


def balanced_test_examples(
    key: PRNGKey, labels: Int[np.ndarray, " t"], num_clients: int, num_classes: int
) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Draw test examples for each client: floor(t / C / K) of every class, drawn anew from all of
    them (FedUL's code).

    The accuracy over all drawn rows is the mean over clients of the accuracy on class-balanced test
    sets, which overlap.

    Args:
        key: typed PRNG key.
        labels: labels of the test examples, -1 = none.
        num_clients: C.
        num_classes: K.

    Returns:
        Rows, and the client of each.
    """
    each = len(labels) // num_clients // num_classes
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    if not each or counts.min() < each:
        raise ValueError(
            f"balanced_test: {len(labels)} test examples for {num_clients} clients of "
            f"{num_classes} classes make {each} each, and class {counts.argmin()} has "
            f"{counts.min()}; use fewer clients, or balanced_test=False"
        )

    def draw(client: Int[Array, ""]) -> Int[Array, " n"]:
        drawn = rank_within(jax.random.fold_in(key, client), jnp.asarray(labels)) < each
        return jnp.nonzero(drawn & (labels >= 0), size=each * num_classes)[0].astype(jnp.int32)

    clients = int_range(num_clients)
    return jax.lax.map(draw, clients).reshape(-1), jnp.repeat(clients, each * num_classes)


def clients_of_own_test(
    dataset: Dataset, rows: Int[np.ndarray, " t"], holder: Int[np.ndarray, " N"], num_clients: int
) -> tuple[Int[np.ndarray, " t"], int]:
    """Return the client of each of the dataset's own test examples, if clients are natural.

    Args:
        dataset: dataset with a test split.
        rows: rows of the test split.
        holder: the client that has each training example, -1 = nobody.
        num_clients: number of training clients; clients that only have test examples are numbered
            from here on.

    Returns:
        The client of each row, -1 = none; the number of clients that only have test examples.
    """
    if dataset.test is None or dataset.test.client is None or dataset.train.client is None:
        return np.full(len(rows), -1), 0
    owner = dataset.test.client[rows]
    known, natural = np.unique(dataset.train.client, return_inverse=True)
    strangers = np.setdiff1d(owner, known)
    # Numbers of the clients in this federation, by their place among all natural ones.
    of_known = np.full(len(known), -1)
    np.maximum.at(of_known, natural, holder)
    of_stranger = num_clients + np.arange(len(strangers))
    everyone = np.concatenate([known, strangers])
    order = np.argsort(everyone)
    place = order[np.searchsorted(everyone, owner, sorter=order)]
    return np.concatenate([of_known, of_stranger])[place], len(strangers)
