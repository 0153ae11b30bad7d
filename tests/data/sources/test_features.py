"""`features`: arrays of an encoder, with views that methods draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import data
from fedjax_ssl.data import StoredViews


def save(path, **arrays):
    values = {"inputs": np.ones((6, 5, 3), np.float32), "labels": np.arange(6) % 2, **arrays}
    np.savez(path, **values)
    return path


def test_arrays_from_elsewhere_are_read_as_they_are(tmp_path):
    inputs = np.arange(90, dtype=np.float16).reshape(6, 5, 3)
    path = save(tmp_path / "f.npz", inputs=inputs, test_inputs=inputs[:2, 0], test_labels=[0, 1])
    found = data.load("features", path=path)
    assert (found.views, found.input_shape, found.train.x.dtype) == ((2, 2), (3,), np.float32)
    np.testing.assert_array_equal(found.train.x, inputs)
    np.testing.assert_array_equal(found.test.x[:, 0], inputs[:2, 0])
    plain = data.load("features", path=save(path, inputs=inputs[:, 0]), strong_views=0)
    assert plain.views == (0, 0) and plain.train.x.shape == (6, 1, 3)


def test_statistics_are_those_of_examples_as_they_are(tmp_path):
    inputs = np.random.default_rng(0).standard_normal((6, 5, 3), np.float32)
    path = save(tmp_path / "f.npz", inputs=inputs)
    found, _ = data.standardized(data.load("features", path=path))
    np.testing.assert_allclose(found.mean, inputs[:, 0].mean(0), rtol=1e-5, atol=1e-6)
    normalize = data.normalizer(found)
    seen = normalize(jnp.asarray(inputs))
    np.testing.assert_allclose(seen, normalize(jnp.asarray(inputs[:, 0])))
    np.testing.assert_allclose(np.mean(seen, 0), 0, atol=1e-6)


def test_views_are_drawn_from_the_stored_ones_of_their_kind():
    inputs = jnp.broadcast_to(jnp.arange(6.0)[None, :, None], (200, 6, 2))
    views = StoredViews(weak=2, strong=3)
    for strong, expected in ((False, {1, 2}), (True, {3, 4, 5})):
        drawn = data.drawn_views(views, strong)(jax.random.key(0), inputs)
        assert drawn.shape == (200, 2) and set(np.unique(drawn).astype(int)) == expected
    same = data.drawn_views(StoredViews(0, 3), strong=False)(jax.random.key(0), inputs)
    np.testing.assert_array_equal(same, 0)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"inputs": np.ones((6, 2, 3, 1))}, {}, r"\[n, d\] or \[n, views, d\]"),
        ({"inputs": np.ones((6, 3), np.uint8)}, {}, "features are floating point"),
        ({}, {"strong_views": 5}, "strong_views is 5, but an example has 4 views beside itself"),
        ({"test_inputs": np.ones((2, 4))}, {}, "they must be alike"),
        ({"labels": np.arange(5)}, {}, "labels has shape"),
    ],
)
def test_bad_arrays(tmp_path, arrays, options, message):
    with pytest.raises(ValueError, match=message):
        data.load("features", path=save(tmp_path / "f.npz", **arrays), **options)


def test_pools_need_views_of_test_examples(tmp_path):
    found = data.load("features", path=save(tmp_path / "f.npz", test_inputs=np.ones((2, 3))))
    with pytest.raises(ValueError, match="have no views to train on"):
        data.with_pooled_splits(found)
