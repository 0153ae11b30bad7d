import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits as sklearn_digits
from sklearn.neighbors import KNeighborsClassifier

from fedjax_ssl.data import load


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return load("glyphs", root=root, writers=20), root


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"writers": 3}, r"no option 'writers'\. Its options: none"),
        ("digits", {"path": "digits.npz"}, "takes no path="),
    ],
)
def test_wrong_names_and_options(name, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(name, root=tmp_path, **options)


def test_digits_equal_the_original():
    original = sklearn_digits()
    digits = load("digits")
    np.testing.assert_array_equal(digits.train.x[..., 0], original.images)
    np.testing.assert_array_equal(digits.train.y, original.target)
    assert digits.train.x.dtype == np.uint8
    assert digits.test is None
    assert digits.input_max == digits.train.x.max() == 16
    assert digits.class_names == tuple(str(name) for name in original.target_names)


def test_glyphs_read_as_their_class_and_writers_differ(glyphs):
    data, _ = glyphs

    def flat(split):
        return split.x.reshape(len(split), -1).astype(np.float32)

    nearest = KNeighborsClassifier(1).fit(flat(data.train), data.train.y)
    known_writers = nearest.score(flat(data.test), data.test.y)
    seen = data.train.client < 15
    unseen = data.train.client >= 15
    unseen_writers = (
        KNeighborsClassifier(1)
        .fit(flat(data.train)[seen], data.train.y[seen])
        .score(flat(data.train)[unseen], data.train.y[unseen])
    )
    neighbour = nearest.kneighbors(flat(data.test), 1, return_distance=False)[:, 0]
    same_writer = (data.train.client[neighbour] == data.test.client).mean()
    assert known_writers > 0.6
    assert 0.4 < unseen_writers < known_writers - 0.05
    assert same_writer > 0.3  # chance is 0.05


def test_glyphs_smaller_set_is_the_beginning_of_a_larger_one(glyphs, tmp_path):
    data, _ = glyphs
    small = load("glyphs", root=tmp_path, writers=2)
    for part, whole in ((small.train, data.train), (small.test, data.test)):
        rows = np.flatnonzero(whole.client < 2)
        np.testing.assert_array_equal(part.y, whole.y[rows])
        np.testing.assert_array_equal(part.client, whole.client[rows])
        np.testing.assert_array_equal(part.x, whole.x[rows])


def test_glyphs_depend_on_the_seed_and_not_on_64_bit_types(tmp_path):
    options = {"writers": 2, "examples": 40}
    first = load("glyphs", root=tmp_path / "a", **options)
    with jax.enable_x64(True):
        wide = load("glyphs", root=tmp_path / "b", **options)
    other = load("glyphs", root=tmp_path / "c", seed=1, **options)
    np.testing.assert_array_equal(first.train.y, wide.train.y)
    np.testing.assert_array_equal(first.train.x, wide.train.x)
    assert first.train.x.shape != other.train.x.shape or (first.train.x != other.train.x).any()


def test_glyphs_are_cached_and_a_damaged_cache_is_made_again(glyphs, caplog):
    data, root = glyphs
    (folder,) = (root / "glyphs").iterdir()
    assert folder.name == "v2-writers20-seed0-examples227"
    again = load("glyphs", root=root, writers=20)
    assert isinstance(again.train.x.base, np.memmap)
    np.testing.assert_array_equal(again.test.x, data.test.x)
    assert (again.class_names, again.client_names, dict(again.extra)) == (
        data.class_names,
        data.client_names,
        dict(data.extra),
    )
    file = folder / "test_x.npy"
    file.write_bytes(file.read_bytes()[:1000])
    repaired = load("glyphs", root=root, writers=20)
    assert "damaged and will be made again" in caplog.text
    np.testing.assert_array_equal(repaired.test.x, data.test.x)
    assert [entry.name for entry in (root / "glyphs").iterdir()] == [folder.name]
    assert np.load(file, mmap_mode="r").shape == data.test.x.shape


def test_glyphs_without_a_folder_to_keep_them_in(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    data = load("glyphs", root=tmp_path / "file", writers=1, examples=40)
    assert len(data.train) > 0
    assert "was not kept" in caplog.text
