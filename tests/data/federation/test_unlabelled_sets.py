"""FedUL's data protocol on labels with MNIST's class counts, against a simulation of its
released code.
"""

import functools

import jax
import numpy as np
import pytest

from fedjax_ssl.data import Dataset, Split, federate

# Digits of each class among the first 48,000 training images of MNIST, which the paper trains on.
COUNTS = (4729, 5470, 4762, 4889, 4655, 4324, 4748, 4968, 4653, 4802)
NUM_CLIENTS = 5
NUM_SEEDS = 4


@functools.cache
def dataset() -> Dataset:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10, dtype=np.int32), COUNTS))
    test = Split(np.zeros((10, 1), np.float32), np.arange(10, dtype=np.int32))
    return Dataset(
        "made", Split(np.zeros((len(labels), 1), np.float32), labels), test, tuple("abcdefghij")
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("partition", "sets", "used", "distinct", "mean_largest_share"),
    [
        ("iid", 40, 2191, 1967, None),
        ("majority", 40, 6128, 2002, 0.39),
    ],
)
def test_reference_sets_have_the_sizes_of_the_published_code(
    partition: str, sets: int, used: int, distinct: int, mean_largest_share: float | None
) -> None:
    examples = []
    different = []
    largest = []
    for seed in range(NUM_SEEDS):
        data = federate(
            jax.random.key(seed),
            dataset(),
            partition=partition,
            num_clients=NUM_CLIENTS,
            supervision="sets",
            supervision_options={
                "sets": sets,
                "protocol": "reference",
                "shared_shares": partition == "iid",
            },
        )
        sizes = np.asarray(data.num_examples)
        examples += sizes.tolist()
        different += [
            len(set(rows[:size])) for rows, size in zip(np.asarray(data.index), sizes, strict=True)
        ]
        largest.append(np.asarray(data.weak.matrix).max(axis=2).mean())
    # Means of four non-iid federations differ by some 2 %.
    assert np.mean(examples) == pytest.approx(used, rel=0.05)
    assert np.mean(different) == pytest.approx(distinct, rel=0.05)
    if mean_largest_share is not None:
        assert np.mean(largest) == pytest.approx(mean_largest_share, abs=0.02)
