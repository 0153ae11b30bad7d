"""FedMatch's tasks: the sizes of its split, its draws of classes, and examples that come in
parts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.data import Dataset, Split, federate, report, with_pooled_splits
from fedjax_ssl.data.federation.partition import PARTITIONS
from fedjax_ssl.data.federation.pool import Facts, Pool
from fedjax_ssl.data.federation.published_partitions import FEDMATCH_MATRIX
from fedjax_ssl.data.federation.report import counts_by_kind


def images(count: int, test: int = 0) -> Dataset:
    """Ten classes in turn, an image without pixels worth mentioning."""
    splits = [
        Split(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n) % 10) for n in (count, test) if n
    ]
    return Dataset("images", splits[0], splits[1] if test else None, tuple("0123456789"))


def test_labels_at_clients_iid() -> None:
    """FedMatch section 13, check 16: 60,000 images are 3,000 for test, 3,000 for validation and
    100 (50 + 490).
    """
    data = federate(
        jax.random.key(0),
        with_pooled_splits(images(50_000, 10_000)),
        partition="fedmatch",
        num_clients=100,
        supervision="per_class",
        supervision_options={"labels": 5},
        test_fraction=0.05,
        validation_fraction=3 / 57,
    )
    summary = data.summary()
    assert (summary["test_examples"], summary["validation_examples"]) == (3000, 3000)
    assert summary["unused_examples"] == 0
    counts, labelled = (counts_by_kind(data)[kind][:, :-1] for kind in ("examples", "labelled"))
    assert (labelled == 5).all() and (counts == 54).all()
    assert (data.min_labelled, data.max_labelled, data.max_unlabelled) == (50, 50, 490)
    rows = [
        np.asarray(data.index).ravel(),
        np.asarray(data.test_index),
        np.asarray(data.valid_index),
    ]
    assert len(np.unique(np.concatenate(rows))) == 60_000


def pool(count: int, num_clients: int) -> Pool:
    facts = Facts(num_clients, 10, (count // 10,) * 10, 0, 0, count, count)
    return Pool(
        jnp.arange(count, dtype=jnp.int32) % 10,
        jnp.ones(count, bool),
        jnp.full(count, -1, jnp.int32),
        facts,
    )


@pytest.mark.thorough
def test_noniid_draws_follow_the_matrix_until_classes_run_out() -> None:
    """FedMatch section 6: with balanced pools 244 of 49,000 images are lost on average, the
    smallest client has 374.

    Single draws deviate by 65 and 38; the bounds are more than three deviations of a mean of ten.
    """
    np.testing.assert_allclose([FEDMATCH_MATRIX.sum(0), FEDMATCH_MATRIX.sum(1)], 1.0, rtol=1e-12)
    assert np.abs(FEDMATCH_MATRIX - 0.1).sum(1) == pytest.approx(1.0), (
        "half of it is the total variation"
    )
    everything = pool(54_000, 100)
    assign = jax.jit(lambda key: PARTITIONS.build("fedmatch", noniid=True).assign(key, everything))
    lost = []
    smallest = []
    mixes = np.zeros((10, 10))
    for seed in range(10):
        client = np.asarray(assign(jax.random.key(seed)))
        table = np.zeros((100, 10), int)
        np.add.at(table, (client[client >= 0], np.arange(54_000)[client >= 0] % 10), 1)
        assert (table >= 5).all()
        lost.append((client < 0).sum())
        smallest.append(table.sum(1).min() - 50)
        # no class runs out before half of the clients are done
        mixes += (table[:50] - 5).reshape(5, 10, 10).sum(0)
    assert abs(np.mean(lost) - 244) < 80 and abs(np.mean(smallest) - 374) < 40
    assert np.abs(mixes / mixes.sum(1, keepdims=True) - FEDMATCH_MATRIX).max() < 0.01


def test_streaming_parts_have_the_same_classes() -> None:
    """FedMatch section 13, check 16: 37 images over 10 parts are 3 each, and 7 are used by
    nobody.
    """
    dataset = images(400 + 2 * 370, test=10)
    options = {"partition": "fedmatch", "num_clients": 2, "supervision": "per_class"}
    data = federate(
        jax.random.key(0),
        dataset,
        **options,
        partition_options={"balanced": 20, "parts": 10},
        supervision_options={"labels": 20},
    )
    assert data.num_parts == 10 and data.num_labelled.tolist() == [200, 200]
    assert data.num_examples.tolist() == [500, 500] and data.summary()["unused_examples"] == 2 * 70
    assert "140 examples are in none of these" in report(data, dataset.class_names)
    for client in range(2):
        streamed = np.asarray(data.index)[client, 200:500].reshape(10, 30)
        assert all((np.bincount(part % 10) == 3).all() for part in streamed)


@pytest.mark.thorough
def test_a_part_without_images_is_no_error() -> None:
    """Fewer images of every class than parts: nothing is left to be streamed, the labelled ones
    stay.
    """
    data = federate(
        jax.random.key(0),
        images(140, test=10),
        partition="fedmatch",
        num_clients=2,
        partition_options={"parts": 3},
        supervision="per_class",
        supervision_options={"labels": 5},
    )
    assert data.num_examples.tolist() == [50, 50] and data.max_unlabelled == 0


@pytest.mark.parametrize(
    ("options", "num_clients", "message"),
    [
        (
            {"balanced": 5},
            3,
            "3 clients with 5 .* need 15 examples of class 0, but there are 10 .*; lower",
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused(options: dict, num_clients: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federate(
            jax.random.key(0),
            images(100, test=10),
            partition="fedmatch",
            num_clients=num_clients,
            partition_options=options,
            supervision="all",
        )


def test_tasks_of_the_paper_have_ten_classes() -> None:
    pool = Pool(*(jnp.zeros(60, jnp.int32),) * 3, Facts(3, 2, (30, 30), 0, 0, 60, 60))
    with pytest.raises(ValueError, match="ten classes, the data have 2; give"):
        PARTITIONS.build("fedmatch", noniid=True, balanced=0).assign(jax.random.key(0), pool)


def test_splits_are_pooled_only_where_there_are_two() -> None:
    with pytest.raises(
        ValueError, match="pool_splits: dataset 'images' has no test examples of its own"
    ):
        with_pooled_splits(images(10))
