"""RSNA's slices from small DICOM files; the brightness of a marked square carries the class."""

import importlib

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.sources import rsna
from fedjax_ssl.data.sources.rsna import ANY, CLASSES

ROWS, COLUMNS = 16, 24  # lying: the margins of 4 on both sides are cut off
AT = (3, 5)  # row and column of the marked pixel, in the square that is left


def units(label):
    """Hounsfield units [16, 24]; air, but for one pixel."""
    found = np.full((ROWS, COLUMNS), -1000)
    found[AT[0], AT[1] + (COLUMNS - ROWS) // 2] = 8 * label + 10
    return found


def write_slice(
    path,
    hounsfield,
    patient="P1",
    syntax="1.2.840.10008.1.2.1",
    slope=2,
    intercept=-1024,
    **changes,
):
    pydicom = pytest.importorskip("pydicom")
    stored = ((np.asarray(hounsfield) - intercept) / slope).astype("<i2")
    slice_ = pydicom.Dataset()
    slice_.file_meta = pydicom.dataset.FileMetaDataset()
    slice_.file_meta.TransferSyntaxUID = syntax
    slice_.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    slice_.SOPInstanceUID = "1.2.3"
    facts = {"PatientID": patient, "SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2"}
    facts |= {
        "Rows": ROWS,
        "Columns": COLUMNS,
        "BitsAllocated": 16,
        "BitsStored": 16,
        "HighBit": 15,
    }
    facts |= {"PixelRepresentation": 1, "RescaleSlope": slope, "RescaleIntercept": intercept}
    for key, value in (facts | {"PixelData": stored.tobytes()} | changes).items():
        setattr(slice_, key, value)
    slice_.save_as(path, enforce_file_format=True)


def write_table(folder, kinds, more=()):
    lines = ["ID,Label"]
    for name, has in kinds.items():
        lines += [f"{name}_{kind},{int(kind in has)}" for kind in CLASSES]
        lines.append(f"{name}_{ANY},{int(bool(has))}")
    (folder / "stage_2_train.csv").write_text("\n".join((*lines, *more)) + "\n")


KINDS = {f"ID_{place:09}": (CLASSES[place],) for place in range(5)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "stage_2_train").mkdir()
    others = {"ID_000000005": (), "ID_000000006": CLASSES[:2]}  # healthy, and of two kinds
    write_table(tmp_path, KINDS | others)
    for place, name in enumerate(KINDS):
        write_slice(tmp_path / "stage_2_train" / f"{name}.dcm", units(place), f"P{place % 2}")
    return tmp_path


def read(folder, **options):
    return load("rsna_hemorrhage", root=folder / "root", path=folder, **{"size": ROWS, **options})


def test_slices_with_one_kind_in_three_windows(folder, monkeypatch):
    first = read(folder)
    monkeypatch.setattr(rsna, "_read_table", None)
    for data in (first, read(folder)):
        assert data.train.x.shape == (5, ROWS, ROWS, 3) and data.test is None
        assert (data.train.y.tolist(), data.class_names) == ([0, 1, 2, 3, 4], CLASSES)
        assert (data.train.client.tolist(), data.client_names) == ([0, 1, 0, 1, 0], ("P0", "P1"))
        value = 8 * data.train.y + 10
        expected = np.stack(
            [255 * (value - low) / width for low, width in ((0, 80), (-20, 200), (-150, 380))],
            axis=-1,
        )
        np.testing.assert_array_equal(data.train.x[:, AT[0], AT[1]], np.rint(expected))
        assert (data.train.x.reshape(5, -1, 3) > 0).sum(axis=1).tolist() == [[1, 1, 1]] * 5


def test_fewer_and_smaller(folder):
    write_slice(folder / "stage_2_train" / "ID_000000005.dcm", units(5))
    more = read(folder, healthy=3)
    assert more.class_names == ("healthy", *CLASSES) and more.train.y.tolist() == [1, 2, 3, 4, 5, 0]
    kept = read(folder, healthy=1, max_images=3).train.y
    assert (kept == 0).sum() == 1 and len(kept) == 3, "healthy slices are drawn beside the others"
    few = read(folder, max_images=2, size=4)
    assert few.train.x.shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(read(folder, max_images=2).train.y, few.train.y)
    assert len(read(folder, max_images=9).train) == 5
    for options in ({"size": 0}, {"max_images": 0}):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            read(folder, **options)


def test_files_that_cannot_be_used_are_counted(folder):
    images = folder / "stage_2_train"
    names = [f"{name}.dcm" for name in KINDS]
    (images / names[0]).unlink()
    content = (images / names[1]).read_bytes()
    (images / names[1]).write_bytes(content[:-20])
    (images / names[2]).write_bytes(b"no DICOM")
    data = read(folder)
    assert data.train.y.tolist() == [3, 4]
    (note,) = data.extra["notes"]
    assert "3 of 5 images cannot be used: 2 cut short or damaged, first ID_000000001.dcm" in note
    assert "1 not there, first ID_000000000.dcm" in note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Rows": 9000}, "cut short or damaged"),
        ({"NumberOfFrames": 3}, "of several frames"),
        ({"RescaleSlope": "1e308"}, "cut short or damaged"),
    ],
)
def test_a_slice_that_is_too_much(folder, changes, reason):
    images = folder / "stage_2_train"
    for place, name in enumerate(KINDS):
        write_slice(images / f"{name}.dcm", units(place), **changes)
    with pytest.raises(DatasetUnavailable, match=f"5 of 5 images cannot be used: 5 ({reason})"):
        read(folder)


def test_rows_that_repeat_or_contradict_others(folder):
    again = [f"ID_000000000_{kind},{int(kind in (CLASSES[0], ANY))}" for kind in (*CLASSES, ANY)]
    write_table(folder, KINDS, [*again, "ID_000000001_any,0"])
    data = read(folder)
    assert data.train.y.tolist() == [0, 2, 3, 4]
    assert "7 rows of stage_2_train.csv said before" in data.extra["notes"][0]
    assert (
        "1 slice has rows of stage_2_train.csv that differ, first ID_000000001"
        in data.extra["notes"][1]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no table of comma-separated values: No columns"),
        (b"ID,Label\nID_1_epidurl,1\n", "line 2: 'ID_1_epidurl,1' is no ID_x_KIND,0 or 1"),
        (b"ID,Label\nID_1_any,2\n", "line 2"),
        (b"ID,Label\n\xff", "no table of comma-separated values"),
        (b"ID,Label\nID_1_any,1\n", "has no slice with exactly one of"),
    ],
)
def test_tables_that_are_none(folder, content, message):
    (folder / "stage_2_train.csv").write_bytes(content)
    with pytest.raises(DatasetUnavailable, match=message):
        read(folder)


def test_what_is_missing_says_what_to_do(folder, monkeypatch):
    with pytest.raises(DatasetUnavailable, match=r"(.|\n)*accept the rules(.|\n)*180 GB"):
        load("rsna_hemorrhage", root=folder)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DatasetUnavailable, match=r"pip install 'fedjax_ssl\[medical\]'"):
        read(folder)
