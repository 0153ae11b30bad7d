import io
import zipfile

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 5, 6), np.uint8)
LABELS = np.arange(12) % 3
BASE = {"inputs": IMAGES, "labels": LABELS}


@pytest.fixture
def save(tmp_path):
    def save_arrays(**arrays):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return path

    return save_arrays


def test_grey_images_get_a_channel_and_clients_any_numbering(save):
    client = np.array([40, 7, 7, 40] * 3)
    data = load("npz", path=save(inputs=IMAGES, labels=LABELS.astype(np.uint8), client=client))
    np.testing.assert_array_equal(data.train.x, IMAGES[..., None])
    np.testing.assert_array_equal(data.train.y, LABELS)
    np.testing.assert_array_equal(data.train.client, [1, 0, 0, 1] * 3)
    assert data.client_names == ("7", "40")
    assert (data.num_classes, data.input_max, data.test) == (3, 255.0, None)


def test_test_split_clients_by_name_and_class_names(save):
    path = save(
        inputs=IMAGES[..., None],
        labels=LABELS,
        client=np.array(["ann", "bob"] * 6),
        test_inputs=IMAGES[:3, ..., None],
        test_labels=np.array([2, -1, 0]),
        test_client=np.array(["bob", "eve", "ann"]),
        class_names=np.array(["x", "y", "z"]),
    )
    data = load("npz", path=path)
    assert data.client_names == ("ann", "bob", "eve")
    np.testing.assert_array_equal(data.test.client, [1, 2, 0])
    np.testing.assert_array_equal(data.test.y, [2, -1, 0])
    assert data.class_names == ("x", "y", "z")


def test_keras_names(save):
    data = load(
        "npz",
        path=save(
            x_train=IMAGES, y_train=LABELS[:, None], x_test=IMAGES[:2], y_test=LABELS[:2, None]
        ),
    )
    np.testing.assert_array_equal(data.train.x[..., 0], IMAGES)
    np.testing.assert_array_equal(data.test.y, LABELS[:2])


def test_medmnist_names_and_validation_examples_are_trained_on(save):
    parts = {
        f"{split}_{what}": values
        for split in ("train", "val", "test")
        for what, values in (
            ("images", IMAGES if split == "train" else IMAGES[:3]),
            ("labels", (LABELS if split == "train" else LABELS[:3])[:, None].astype(np.uint8)),
        )
    }
    data = load("npz", path=save(**parts))
    assert (len(data.train), len(data.test), data.input_shape) == (15, 3, (5, 6, 1))
    np.testing.assert_array_equal(data.train.y, [*LABELS, *LABELS[:3]])
    assert data.train.names[12] == "validation, row 0"
    said = (
        "3 validation examples are trained on; a run draws its own, with data.validation_fraction"
    )
    assert data.extra["notes"][0] == said
    with pytest.raises(
        ValueError,
        match=r"validation inputs have shape \(3, 5, 5, 1\), training inputs \(12, 5, 6, 1\)",
    ):
        load("npz", path=save(**parts | {"val_images": IMAGES[:3, :, :5]}))
    with pytest.raises(ValueError, match=r"labels has shape \(12, 2\); expected \(12,\)"):
        load("npz", path=save(**parts | {"train_labels": np.stack([LABELS, LABELS], 1)}))


def test_features_stay_and_have_maximum_one(save):
    features = RNG.normal(size=(12, 7))
    data = load("npz", path=save(inputs=features, labels=LABELS))
    np.testing.assert_array_equal(data.train.x, features.astype(np.float32))
    assert (data.input_max, data.mean, data.std) == (1.0, None, None)


def test_number_of_classes_and_input_max_can_be_given(save):
    data = load(
        "npz", path=save(inputs=IMAGES, labels=np.full(12, -1)), num_classes=5, input_max=16.0
    )
    assert (data.num_classes, data.input_max) == (5, 16.0)


def test_coarse_labels_correspondence_and_sets(save):
    coarse = np.where(LABELS == 2, 1, 0)
    sets = np.arange(12) % 4 - 1
    matrix = np.array([[1, 0.75, 0], [0, 0.25, 1], [0, 0, 0]])
    path = save(
        inputs=IMAGES,
        labels=LABELS,
        coarse=coarse,
        correspondence=matrix,
        set=sets,
        client=LABELS % 2,
    )
    data = load("npz", path=path)
    np.testing.assert_array_equal(data.train.coarse, coarse)
    np.testing.assert_array_equal(data.correspondence, matrix)
    np.testing.assert_array_equal(data.train.set, sets)
    assert data.coarse_names == ("0", "1", "2")
    unknown = load("npz", path=save(inputs=IMAGES, labels=LABELS, coarse=coarse))
    assert (unknown.coarse_names, unknown.correspondence, unknown.train.set) == (
        ("0", "1"),
        None,
        None,
    )


def with_nan():
    features = np.zeros((12, 4))
    features[6, 1:3] = np.nan
    return features


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": None}, r"has no array `labels`; found: `inputs`\. Needed are"),
        ({"test_labels": LABELS}, "has no array `test_inputs`"),
        ({"client": LABELS - 1}, r"4 examples have no client \(row 0, row 3"),
        ({"inputs": IMAGES, "x_train": IMAGES}, "under two names"),
        ({"labels": LABELS[:11]}, r"labels has shape \(11,\); expected \(12,\)"),
        (
            {"labels": LABELS + 0.5},
            "labels has dtype float64; it must hold whole numbers, -1 = none",
        ),
        ({"labels": LABELS + 1}, r"from 1 to 3 .* class 0 is the first without an example"),
        ({"labels": LABELS - 3}, "labels holds 0 classes"),
        ({"labels": np.append(LABELS[:11], -4)}, r"label '-4' of 1 example \(row 11\) is none of"),
        ({"inputs": IMAGES.astype(np.int64)}, "inputs has dtype int64; allowed are uint8"),
        ({"inputs": IMAGES.reshape(-1)}, r"inputs has shape \(360,\)"),
        ({"inputs": np.zeros((12, 3, 8, 8), np.uint8)}, r"looks like \[n, C, H, W\]"),
        ({"inputs": np.zeros((12, 4, 8, 8), np.uint8)}, r"looks like \[n, C, H, W\]"),
        ({"inputs": np.zeros((12, 5, 8, 8), np.uint8)}, r"np.moveaxis\(inputs, 1, -1\)"),
        ({"test_inputs": np.zeros((12, 6, 8, 8))}, r"test_inputs .*looks like \[n, C, H, W\]"),
        ({"inputs": np.zeros((5, 6, 12), np.uint8)}, r"labels has shape \(12,\); expected \(5,\)"),
        ({"inputs": np.zeros((12, 4, 4, 4, 1), np.uint8)}, "of volumes give slices"),
        ({"labels": np.where(LABELS, 1, -1)}, "labels holds 1 class beside -1, which is no label"),
        ({"inputs": with_nan()}, r"inputs has 2 values that are NaN .* first in row 6"),
        ({"class_names": np.array(["x", "y"])}, "label '2' of 4 examples .*Classes: 0, 1"),
        ({"correspondence": np.eye(3)}, "coarse, the labels it is about, is not"),
        ({"coarse": 0 * LABELS}, "at least two coarse classes are needed"),
        ({"set": LABELS - 2}, "set is '-2' in row 0, row 3"),
        ({"labels": LABELS.astype(object)}, "'labels' holds Python objects, which are refused"),
        ({"class_names": np.array([["x", "y", "z"]])}, r"class_names has shape \(1, 3\)"),
        ({"class_names": np.array(["x", "y", "x"])}, "class_names has 'x' more than once"),
        (
            {"labels": np.array([2**63 + 1] * 12, np.uint64)},
            "labels holds 1 class beside -1",
        ),
        (
            {"inputs": np.array([[0.0], [1e39]] * 6)},
            r"inputs has a value beyond 3\.4e\+38 in row 1",
        ),
    ],
)
def test_bad_content_is_named(save, arrays, message):
    path = save(**{name: array for name, array in (BASE | arrays).items() if array is not None})
    with pytest.raises(ValueError, match=message) as caught:
        load("npz", path=path)
    assert str(path) in str(caught.value)


def test_missing_path_and_file(tmp_path):
    with pytest.raises(ValueError, match="needs path="):
        load("npz")
    with pytest.raises(DatasetUnavailable, match=r'none\.npz is not there.*load\("digits"\)'):
        load("npz", path=tmp_path / "none.npz")
    with pytest.raises(DatasetUnavailable, match="is not a file"):
        load("npz", path=tmp_path)


def test_damaged_files(save, tmp_path):
    path = save(inputs=np.tile(IMAGES, (50, 1, 1)), labels=np.tile(LABELS, 50))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetUnavailable, match=r"not a readable \.npz file, or it is cut short"):
        load("npz", path=path)
    path.write_bytes(content[:9000] + b"broken" + content[9006:])
    with pytest.raises(DatasetUnavailable, match=r"array 'inputs' of .* is damaged"):
        load("npz", path=path)
    path.write_text("hello")
    with pytest.raises(
        DatasetUnavailable, match=r"not a readable \.npz.* it is of another kind"
    ) as error:
        load("npz", path=path)
    assert "pickle" not in str(error.value)
    np.save(tmp_path / "bare.npy", IMAGES)
    with pytest.raises(DatasetUnavailable, match="one bare array"):
        load("npz", path=tmp_path / "bare.npy")


def members(path, **contents):
    """An .npz file with these bytes, or arrays, as members."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            if isinstance(content, np.ndarray):
                array = io.BytesIO()
                np.save(array, content)
                content = array.getvalue()
            file.writestr(name, content)
    return path


def header(shape, dtype="<f8") -> bytes:
    """The beginning of an array that is not there."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def test_a_header_that_claims_terabytes_takes_no_memory(tmp_path):
    path = members(
        tmp_path / "mine.npz", **{"inputs.npy": header((10**6, 10**6)), "labels.npy": LABELS}
    )
    with pytest.raises(DatasetUnavailable, match=r"array 'inputs' of .* is damaged"):
        load("npz", path=path)


def test_a_member_that_is_no_array_is_named(tmp_path):
    path = members(tmp_path / "mine.npz", inputs=b"hello", **{"labels.npy": LABELS})
    with pytest.raises(DatasetUnavailable, match=r"'inputs' in .* is no array"):
        load("npz", path=path)
    path = members(tmp_path / "mine.npz", **{"inputs.npy": b"hello", "labels.npy": LABELS})
    with pytest.raises(DatasetUnavailable, match=r"'inputs' (in|of) "):
        load("npz", path=path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path):
    path = members(tmp_path / "mine.npz", **{"inputs.npy": IMAGES, "labels.npy": LABELS})
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("labels.npy", b"x")
    with pytest.raises(ValueError, match="holds `labels` more than once"):
        load("npz", path=path)


def test_large_ids_of_two_types_stay_apart(save):
    """As floating point, 2**53 and 2**53 + 1 would be one client."""
    client = np.array([2**53, 2**53 + 1] * 6, np.uint64)
    path = save(
        **{"inputs": IMAGES, "labels": LABELS, "client": client},
        **{
            "test_inputs": IMAGES[:2],
            "test_labels": LABELS[:2],
            "test_client": client[:2].astype(np.int64),
        },
    )
    assert load("npz", path=path).client_names == (str(2**53), str(2**53 + 1))


def test_an_axis_that_may_be_no_channels_is_said(save):
    volumes = np.zeros((12, 6, 6, 6), np.uint8)
    assert any(
        "whose last axis is taken as 6 channels" in note
        for note in load("npz", path=save(inputs=volumes, labels=LABELS)).extra["notes"]
    )


def test_minus_one_and_large_offsets_are_told(tmp_path):
    inputs = 1.6e9 + np.arange(12.0).reshape(6, 2)
    np.savez(path := tmp_path / "a.npz", inputs=inputs, labels=np.array([-1, 0, 1, -1, 0, 1]))
    notes = load("npz", path=path).extra["notes"]
    assert (
        "2 features (first number 0): so far from 0" in notes[0]
        and "2 labels are -1, taken as no label" in notes[1]
    )
