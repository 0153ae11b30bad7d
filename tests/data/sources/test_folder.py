"""Images of a user's own, as users have them."""

import logging
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import BadData, DatasetUnavailable, check, load

RNG = np.random.default_rng(0)
ROW = 3
COLUMN = 5


def save(path, label, mode="L", shape=(8, 9), **options):
    """An image of noise whose marked pixel is 60 * label in the last channel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = RNG.integers(0, 256, (*shape, len(mode)), np.uint8)
    values[ROW, COLUMN, -1] = 60 * label
    Image.fromarray(values[..., 0] if mode == "L" else values, mode).save(path, **options)
    return values


def hospital(folder, sites=("north", "south"), classes=("ill", "well"), each=3, **options):
    return {
        f"{site}/{name}/{i}.png": save(folder / site / name / f"{i}.png", k, **options)
        for site in sites
        for k, name in enumerate(classes)
        for i in range(each)
    }


@pytest.fixture
def read(tmp_path):
    """Reads `tmp_path / "scans"`."""

    def load_it(name="scans", **options):
        return load("folder", path=tmp_path / name, root=tmp_path / "root", **options)

    return load_it


@pytest.fixture
def problem(read):
    """The message about a folder that cannot be used."""

    def message(name="scans", **options):
        with pytest.raises(BadData) as caught:
            read(name, **options)
        return str(caught.value)

    return message


def table(tmp_path, *lines, encoding="utf-8"):
    (tmp_path / "scans" / "about.csv").write_text("\n".join(lines), encoding=encoding)


def test_sites_and_classes_by_folder_pixel_by_pixel_and_again_from_the_cache(
    tmp_path, read, monkeypatch
):
    images = hospital(tmp_path / "scans")
    save(tmp_path / "scans/north/unlabelled/7.png", 4)
    first = read()
    monkeypatch.setattr("fedjax_ssl.data.sources.folder.read_images", None)
    for data in (first, read()):
        assert (data.class_names, data.client_names, data.test) == (
            ("ill", "well"),
            ("north", "south"),
            None,
        )
        names = sorted([*images, "north/unlabelled/7.png"])
        assert [data.client_names[i] for i in data.train.client] == [
            name.split("/")[0] for name in names
        ]
        assert sorted(data.train.y.tolist()) == [-1] + 6 * [0] + 6 * [1]
        np.testing.assert_array_equal(
            data.train.x[:, ROW, COLUMN, 0], np.where(data.train.y < 0, 240, 60 * data.train.y)
        )
        np.testing.assert_array_equal(data.train.x[0], images[names[0]])


def test_a_changed_file_and_another_option_are_read_anew(tmp_path, read):
    hospital(tmp_path / "scans")
    assert read().input_shape == (8, 9, 1) and read(size=4, channels=3).input_shape == (4, 4, 3)
    save(tmp_path / "scans/north/ill/9.png", 0)
    assert (len(read().train), len(read(size=4, channels=3).train)) == (13, 13)
    # what the change made useless is gone
    assert len(list((tmp_path / "root" / "folder").glob("*/converted-*"))) == 2


def test_classes_alone_and_splits_above_them(tmp_path, read):
    hospital(tmp_path / "scans", sites=("Train", "test", "val"))
    data = read()
    assert (data.client_names, len(data.train), len(data.test)) == (None, 12, 6)
    assert "6 validation examples are trained on" in data.extra["notes"][0]


def test_splits_inside_sites_and_inside_classes(tmp_path, read):
    for site in ("Art", "Real World"):
        hospital(tmp_path / "scans" / site, sites=("train", "test", "val"), each=1)
    save(tmp_path / "scans/Art/train/7.png", 4)
    data = read()
    assert (data.client_names, data.class_names) == (("Art", "Real World"), ("ill", "well"))
    assert (len(data.train), len(data.test), (data.train.y < 0).sum()) == (9, 4, 1)
    assert data.test.names[0] == "Art/test/ill/0.png"
    assert (
        data.extra["notes"][0]
        == "the folders test, train, val inside the others are taken as splits"
    )
    hospital(tmp_path / "more", sites=("ill", "well"), classes=("train", "test"))
    data = read("more")
    assert (data.client_names, data.class_names, len(data.train), len(data.test)) == (
        None,
        ("ill", "well"),
        6,
        6,
    )


def test_images_directly_in_a_site_have_no_label(tmp_path, read):
    hospital(tmp_path / "scans")
    save(tmp_path / "scans/south/x.png", 0)
    assert (read().train.y == -1).sum() == 1 and read().client_names == ("north", "south")


@pytest.mark.parametrize(
    ("encoding", "cut"),
    [("utf-8-sig", ","), ("utf-8", ";"), ("utf-8", "\t")],
    ids=["comma", "semicolon", "tab"],
)
def test_a_table_says_all(tmp_path, read, encoding, cut):
    for i in range(6):
        save(tmp_path / f"scans/bilder/ä {i}.jpg", 0)
    rows = ["file,label,client,split,set,coarse,age", "bilder/ä 0.jpg,1.0,Köln,train,0,x,30"]
    rows += [
        "bilder/ä 1.jpg,0.0,Köln,train,1,y,",
        "bilder/ä 2.jpg,,Ulm,,,y,",
        "bilder/a\u0308 3.jpg,10.0,Ulm,Test,,,",
    ]
    rows += ["bilder/ä 4.jpg,0.0,Ulm,train,0,x,1"]
    table(tmp_path, *(row.replace(",", cut) for row in rows), encoding=encoding)
    (tmp_path / "shares.csv").write_text(
        "client,set,0,1,10\nKöln,0,1,0,0\nKöln,1,0,1,0\nUlm,0,.5,.5,0\n"
    )
    for data in (read(), read("scans/about.csv", proportions=tmp_path / "shares.csv")):
        assert (data.class_names, data.client_names, data.coarse_names) == (
            ("0", "1", "10"),
            ("Köln", "Ulm"),
            ("x", "y"),
        )
        np.testing.assert_array_equal(data.train.y, [1, 0, -1, 0])
        np.testing.assert_array_equal(data.train.client, [0, 0, 1, 1])
        np.testing.assert_array_equal(data.train.set, [0, 1, -1, 0])
        np.testing.assert_array_equal(data.train.coarse, [0, 1, 1, 0])
        assert (data.test.y.tolist(), data.test.client.tolist(), data.test.set) == ([2], [1], None)
    assert data.set_shares.shape == (2, 2, 3)
    assert "1 image is in no row of about.csv, first bilder/ä 5.jpg" in data.extra["notes"][0]


def test_unusable_images_are_left_out_and_counted(tmp_path, read, caplog):
    hospital(tmp_path / "scans")
    site = tmp_path / "scans/north/ill"
    (site / "empty.png").touch()
    (site / "words.jpg").write_text("no image")
    (site / "cut.png").write_bytes((site / "1.png").read_bytes()[:90])
    (site / ".hidden.png").touch()
    with caplog.at_level(logging.WARNING):
        assert len(read().train) == 12
    (note,) = [record.getMessage() for record in caplog.records]
    assert "3 of 15 images cannot be used" in note
    for part in (
        "1 0 bytes, first north/ill/empty.png",
        "1 no image, whatever its name says, first",
        "1 cut short or",
    ):
        assert part in note


def test_grey_colour_and_sixteen_bits_in_one_folder(tmp_path, read):
    folder = tmp_path / "scans"
    colour = save(folder / "a/colour.png", 1, "RGB")
    grey = save(folder / "b/grey.png", 2)
    deep = RNG.integers(0, 4000, (8, 9)).astype(np.uint16)
    deep[0, 0] = 3000
    Image.fromarray(deep).save(folder / "b/deep.png")
    data = read()
    np.testing.assert_array_equal(data.train.x[0], colour)
    np.testing.assert_array_equal(data.train.x[2], np.repeat(grey, 3, axis=2))
    np.testing.assert_array_equal(
        data.train.x[1, ..., 2], np.rint(deep.astype(np.float32) * (255 / 4095))
    )
    notes = " ".join(data.extra["notes"])
    assert "in grey: 2, in colour: 1" in notes and "0 to 4,095 become 0 to 255" in notes
    (folder / "a/colour.png").unlink()
    save(folder / "a/grey.png", 0)
    assert read().input_shape == (8, 9, 1)
    assert read(white=3000).train.x[1, 0, 0, 0] == 255


def test_images_of_other_kinds_are_refused_with_a_line_that_mends_them(tmp_path, problem):
    hospital(tmp_path / "scans")
    site = tmp_path / "scans/north/ill"
    grey = Image.fromarray(RNG.integers(0, 256, (8, 9), np.uint8))
    grey.convert("P").save(site / "palette.gif")
    grey.convert("RGBA").save(site / "clear.png")
    grey.save(site / "pages.tif", save_all=True, append_images=[grey])
    Image.fromarray(np.full((8, 9), -1000, np.int16)).save(site / "signed.tif")
    Image.fromarray(np.zeros((8, 9), np.float32)).save(site / "float.tif")
    (site / "slice.DCM").write_bytes(b"x")
    rows = b"".join(b"\0" + bytes(9 * 6) for _ in range(8))  # Pillow cannot write them
    head = struct.pack(">IIBBBBB", 9, 8, 16, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts
    ]
    (site / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    said = problem()
    for part in (
        "3 images with a palette, transparency or another space of colours: north/ill/clear.png, "
        "north/ill/deep.png, north/ill/palette.gif; images have 8 bits in grey or RGB",
        "In Python: Image.open(file).convert('RGB').save('new.png')",
        "2 images with signed, negative or floating-point values: north/ill/float.tif, north",
        "1 image of several pages: north/ill/pages.tif",
        "1 image of DICOM: north/ill/slice.DCM",
    ):
        assert part in said, said


def test_other_sizes_are_cropped_stretched_or_padded(tmp_path, read):
    white = np.full((4, 8), 255, np.uint8)
    white[:, 2:6] = 100
    for place in ("a/0.png", "b/0.png"):
        (tmp_path / "scans" / place).parent.mkdir(parents=True)
        Image.fromarray(white).save(tmp_path / "scans" / place)
    assert read().input_shape == (4, 8, 1)
    assert (read(size=4).train.x == 100).all()
    stretched, padded = (read(size=4, fit=fit).train.x[0, ..., 0] for fit in ("stretch", "pad"))
    assert stretched.max() > 200 and stretched.min() > 99
    assert (padded[[0, 3]] == 0).all() and (padded[1:3] >= 100).all()
    save(tmp_path / "scans/b/1.png", 0)
    assert (
        read().input_shape == (64, 64, 1)
        and "images have 2 sizes, from 8x4 to 9x8" in read().extra["notes"][0]
    )


def test_a_photograph_is_turned_as_it_says(tmp_path, read):
    turned = Image.new("L", (8, 4))
    exif = turned.getexif()
    exif[0x0112] = 6
    for place in ("a", "b"):
        (tmp_path / "scans" / place).mkdir(parents=True)
        turned.save(tmp_path / "scans" / place / "0.jpg", exif=exif)
        turned.save(tmp_path / "scans" / place / "1.tif", exif=exif, compression="tiff_lzw")
    assert read().input_shape == (8, 4, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["north/ill/0.png,ill,north", "north/ill/0.png,well,north"],
            "rows that differ, about.csv, line 2 and .*, line 3",
        ),
        (
            ["north/ill/0.png,ill,north", "north/ill/1.png,well,"],
            "1 example has no client .about.csv, line 3.",
        ),
        (
            ["nrth/ill/0.png,ill,north", "x.png,well,south"],
            "2 of 2 rows name no image in .*nrth/ill/0.png .about.csv, line",
        ),
        (
            ["north/ill/0.png,ill,north"],
            "only one class .ill., but a classifier needs at least two",
        ),
        (["north/ill/0.png,,north"], "no labelled example, but a classifier needs"),
        (["north/ill/0.png,ill"], "the first line has 3 cells, but line 2 has 2"),
    ],
)
def test_tables_that_cannot_be_right(tmp_path, problem, rows, message):
    hospital(tmp_path / "scans")
    table(tmp_path, "file,label,client", *rows)
    said = problem()
    assert re.search(message, said), said


def test_all_problems_are_told_at_once_and_near_names_named(tmp_path, problem):
    hospital(tmp_path / "scans")
    rows = [
        f"north/ill/{i}.png,{label},{split}"
        for i, (label, split) in enumerate([("il", "tain"), ("well", "test")])
    ]
    table(tmp_path, "file,label,part", *rows)
    said = problem(split_column="part", classes=("ill", "well"))
    assert (
        "has 2 problems" in said
        and "'il' of 1 example (about.csv, line 2) is none of the classes" in said
    )
    assert (
        "Did you mean 'ill'?" in said
        and "split is 'tain'" in said
        and "Did you mean 'train'?" in said
    )
    assert "no column 'image'" in problem("scans/about.csv", file_column="image")
    assert "'sit', which data.client_column names" in problem(client_column="sit")


def test_repeated_rows_count_once_and_rows_without_an_image_are_left_out(tmp_path, read):
    hospital(tmp_path / "scans")
    rows = ["north/ill/0.png,ill", "north/well/0.png,well", "north/ill/0.png,ill", "gone.png,ill"]
    table(tmp_path, "file,label", *rows)
    data = read()
    assert data.train.y.tolist() == [0, 1]
    notes = "\n".join(data.extra["notes"])
    assert (
        "1 of 4 rows name no image" in notes
        and "gone.png (about.csv, line 5); they are left out" in notes
    )
    assert (
        "1 row repeats an image, first north/ill/0.png (about.csv, line 4); it counts once" in notes
    )


def test_a_table_of_images_is_never_passed_over_in_silence(tmp_path, read, problem):
    hospital(tmp_path / "scans")
    assert "no table in it has a column 'file'" in problem(label_column="what")
    rows = ["north/ill/0.png,a", "north/well/0.png,b", "./north/ill/1.png,b"]
    table(tmp_path, "image,what", *rows)
    assert "Tables: about.csv (image, what). Name the column as data.file_column=" in problem()
    assert "column 'picture' that names" in problem(file_column="picture")
    assert "column 'file' that names" in problem(label_column="what", layout="class")
    data = read(file_column="image", label_column="what")
    assert (data.class_names, data.train.y.tolist()) == (("a", "b"), [0, 1])
    notes = "".join(data.extra["notes"])
    assert "about.csv says what the images show, not the names" in notes
    assert "no column names the clients, so that all rows are one client's" in notes
    assert "1 of 3 rows name no image in" in notes and "first ./north/ill/1.png" in notes
    assert len(read(layout="site/class").train) == 12
    table(tmp_path, "input,label,name,probability", "scans/north/ill/0.png,0,ill,0.9")
    data = read()
    assert len(data.train) == 12 and "no images by their ending: 1 .csv" in data.extra["notes"][0]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (("a.png", "b.png"), {}, "2 images lie in no folder CLASS .a.png, b.png."),
        (("a/b/c/d.png", "a/b/e.png"), {}, "1 image lies in no folder SITE/CLASS .a/b/c/d.png."),
        (("a/b/e.png",), {"layout": "class"}, "1 image lies in no folder CLASS .a/b/e.png."),
        (("a/b/e.png", "f.png"), {}, "1 image lies in no folder SITE/CLASS .f.png."),
        (("notes.txt",), {}, "there is no image in it"),
        (("test/a/0.png", "train/a/0.png"), {}, "only one class .a."),
        (("test/a/0.png", "train/a/0.png", "more/b.png"), {}, "images elsewhere too .more.; put"),
    ],
)
def test_folders_that_say_too_little(tmp_path, problem, files, options, message):
    for name in files:
        path = tmp_path / "scans" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("png"):
            save(path, 0)
        else:
            path.touch()
    assert re.search(message, problem(**options))


def test_what_is_not_there_or_out_of_range(tmp_path, read):
    with pytest.raises(DatasetUnavailable, match="nowhere is not there"):
        read("nowhere")
    with pytest.raises(ValueError, match="needs path="):
        load("folder")
    hospital(tmp_path / "scans")
    for options, message in (
        ({"size": 0}, "size"),
        ({"channels": 2}, "channels is 2"),
        ({"fit": "cut"}, "fit"),
    ):
        with pytest.raises(ValueError, match=message):
            read(**options)


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_read(
    tmp_path, problem, monkeypatch
):
    hospital(tmp_path / "scans")
    monkeypatch.setattr("fedjax_ssl.data.reading.pictures._memory", lambda: 100.0)
    assert "more than this machine has; give a smaller size than 9" in problem()


def test_a_link_back_to_the_folder_ends(tmp_path, read):
    hospital(tmp_path / "scans")
    (tmp_path / "scans" / "north" / "loop").symlink_to(tmp_path / "scans")
    assert len(read().train) == 12


def test_check_finds_what_a_person_would_want_to_hear(tmp_path):
    hospital(tmp_path / "scans", sites=("site 1", "site 2", "Site 1"), each=2)
    for name in (
        "northern/il/0.png",
        "northern/No label/1.png",
        "north/No label/3.png",
        "unlabelled/2.png",
    ):
        save(tmp_path / "scans" / name, 0)
    found = check(tmp_path / "scans", root=tmp_path)
    assert (found.source, found.problems) == ("folder", ())
    notes = "\n".join(found.notes)
    assert "class il: one labelled training example" in notes
    assert "client 'site 1' (4 examples) is spelt almost like 'Site 1' (4)" in notes
    assert "'site 2'" not in notes
    assert (
        "class 'No label' of 2 examples counts as a class; where nobody knows the label, leave"
        in notes
    )
    assert (
        "client 'unlabelled' of 1 example counts as a client; name the true one, and put" in notes
    )
    bad = check(tmp_path / "scans" / "northern" / "il", root=tmp_path)
    assert bad.dataset is None and "in no folder CLASS" in bad.problems[0]


@pytest.mark.parametrize("name", ["n\udce4he/ill/9.png", "north/ill/\udce4.png"])
def test_names_that_are_no_text_are_a_problem_of_the_check(tmp_path, name):
    hospital(tmp_path / "scans")
    try:
        save(tmp_path / "scans" / name, 0)
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system has names of text alone")
    (tmp_path / "scans" / "x.\udce4").touch()
    found = check(tmp_path / "scans", root=tmp_path / "root")
    (problem,) = found.problems
    assert "1 image lies under names that are not UTF-8, first n" in problem and "\\xe4" in problem
    "\n".join((*found.problems, *found.notes)).encode()  # can be printed
