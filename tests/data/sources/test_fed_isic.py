"""Fed-ISIC2019 from a small folder of real JPEG files, made as FLamby makes its own."""

import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import DatasetUnavailable, load

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")
HEADER = ("image", *CLASSES, "target", "center", "fold", "fold2")
GREEN = (20, 200, 30)
RED = (220, 20, 20)


def row(i, target, center, fold):
    one_hot = [f"{float(k == target)}" for k in range(9)]
    return [f"ISIC_{i:07}", *one_hot, str(target), str(center), fold, f"{fold}_{center}"]


ROWS = [row(i, i % 8, i % 6, "test" if i in (2, 5, 7) else "train") for i in range(12)]


def write_table(folder, rows, header=HEADER):
    lines = [",".join(line) for line in (header, *rows)]
    (folder / "train_test_split").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Green squares between red margins, lying and standing; image 0 is grey, image i has the
    red channel 10 i.
    """
    folder = tmp_path_factory.mktemp("flamby")
    images = folder / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir()
    for i, line in enumerate(ROWS):
        pixels = np.full((40, 72, 3), RED, np.uint8)
        pixels[:, 16:56] = (10 * i, *GREEN[1:])
        if i % 2:
            pixels = pixels.transpose(1, 0, 2)
        image = Image.fromarray(np.full((30, 44), 77, np.uint8) if i == 0 else pixels)
        image.save(images / f"{line[0]}.jpg", quality=95, subsampling=0)
    write_table(folder, ROWS)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "flamby")


@pytest.fixture
def read(folder, tmp_path):
    def read(**options):
        return load("fed_isic2019", root=tmp_path / "root", path=folder, **options)

    return read


def test_split_labels_and_centres_are_the_tables(read):
    data = read(size=8)
    train = [i for i in range(12) if i not in (2, 5, 7)]
    np.testing.assert_array_equal(data.train.y, [i % 8 for i in train])
    np.testing.assert_array_equal(data.train.client, [i % 6 for i in train])
    np.testing.assert_array_equal(data.test.y, [2, 5, 7])
    np.testing.assert_array_equal(data.test.client, [2, 5, 1])
    assert data.class_names == CLASSES[:8] and read().input_shape == (64, 64, 3)
    assert (len(data.client_names), data.client_names[0], data.input_max) == (6, "BCN", 255.0)
    assert data.mean == (0.485, 0.456, 0.406)
    assert data.std == (0.229, 0.224, 0.225)
    assert "CC BY-NC 4.0" in data.extra["terms"]


def test_images_are_the_centre_squares(read):
    data = read(size=20)
    assert data.train.x.shape == (9, 20, 20, 3)
    assert data.train.x.dtype == np.uint8
    np.testing.assert_allclose(data.train.x[0], 77, atol=2)
    train = [i for i in range(12) if i not in (2, 5, 7)]
    for image, i in zip(data.train.x[1:], train[1:], strict=True):
        # up to the margins' colour, which JPEG's 8x8 blocks carry over the border
        np.testing.assert_allclose(
            image[2:-2, 2:-2], np.broadcast_to((10 * i, *GREEN[1:]), (16, 16, 3)), atol=12
        )
    assert data.test.x[0, 10, 10, 0] < data.test.x[1, 10, 10, 0] < data.test.x[2, 10, 10, 0]


def test_a_part_of_the_set_is_read_with_a_warning(read, folder, caplog):
    write_table(folder, [line for line in ROWS if line[-2] == "train"])
    with caplog.at_level(logging.WARNING):
        data = read(size=4)
    assert data.test is None
    assert (
        "has (0, 0, 0, 0, 0, 0) test examples of the centres; published are (2483, 791, 672"
        in caplog.text
    )


def test_missing_folder_says_what_to_get_and_what_to_run_instead(tmp_path):
    with pytest.raises(DatasetUnavailable) as caught:
        load("fed_isic2019", root=tmp_path)
    table = str(tmp_path / "fed_isic2019" / "raw" / "train_test_split")
    for part in (
        table,
        "github.com/owkin/FLamby",
        "download_isic.py --output-folder",
        "CC BY-NC 4.0",
        "digits",
    ):
        assert part in str(caught.value)


def test_missing_images_are_counted(read, folder):
    for i in (4, 9):
        (folder / "ISIC_2019_Training_Input_preprocessed" / f"ISIC_{i:07}.jpg").unlink()
    with pytest.raises(DatasetUnavailable, match=r"2 of the 12 images .* first ISIC_0000004\.jpg"):
        read()


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_damaged_image_is_named(read, folder, content):
    path = folder / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0000003.jpg"
    path.write_bytes(path.read_bytes()[:300] if content is None else content)
    with pytest.raises(
        DatasetUnavailable,
        match=r"1 of 12 images cannot be used: .* first ISIC_0000003\.jpg in .*delete what is",
    ):
        read(size=8)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (10, "8", "line 5: target is '8'; allowed are 0 to 7"),
        (11, "6", "line 5: center is '6'; allowed are 0 to 5"),
        (12, "valid", "line 5: fold is 'valid'; allowed: train, test"),
    ],
)
def test_values_out_of_range_are_named(read, folder, place, value, message):
    rows = [list(line) for line in ROWS]
    rows[3][place] = value
    write_table(folder, rows)
    with pytest.raises(ValueError, match=message):
        read()


def test_tables_that_are_none(read, folder):
    write_table(folder, [line[:10] + line[11:] for line in ROWS], HEADER[:10] + HEADER[11:])
    with pytest.raises(ValueError, match="has no column target; found: image, MEL"):
        read()
    write_table(folder, [])
    with pytest.raises(ValueError, match="has no rows; the first line"):
        read()
    write_table(folder, [ROWS[0][:5]])
    with pytest.raises(ValueError, match="the first line has 14 cells, but line 2 has 5"):
        read()
    (folder / "train_test_split").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read()
