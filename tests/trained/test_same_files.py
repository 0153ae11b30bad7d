"""Image files as people have them: a model sees at prediction what it saw in training, and says
what is unlike it.
"""

import re
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl import cli, data, load_run
from fedjax_ssl.trained.inputs import _by_folders, read_examples
from fedjax_ssl.trained.scales import Scales

RNG = np.random.default_rng(0)
CLASSES = ("lower", "upper")


def half(k, lowest=0, highest=255, shape=(12, 12)):
    """Noise whose upper or lower half is bright."""
    values = RNG.uniform(lowest, lowest + (highest - lowest) * 0.3, shape)
    values[: shape[0] // 2 :] += (highest - lowest) * 0.5 * k
    values[shape[0] // 2 :] += (highest - lowest) * 0.5 * (1 - k)
    return values


def turned(folder, k, i):
    """A photograph that is stored on its side, in one of three formats."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(half(k, shape=(12, 16)).astype(np.uint8)).transpose(
        Image.Transpose.ROTATE_90
    )
    image.save(folder / f"{i}.{('jpg', 'png', 'webp')[i % 3]}", exif=exif, quality=95)


def sixteen_bits(folder, k, i):
    """The same with 16 bits."""
    exif = Image.Exif()
    exif[0x0112] = 3
    image = Image.fromarray(half(k, 0, 3000).astype(np.uint16)).transpose(
        Image.Transpose.ROTATE_180
    )
    image.save(folder / f"{i}.{('png', 'tif')[i % 2]}", exif=exif)


def wide(folder, k, i):
    """A picture with its object in the middle, in colour or grey."""
    image = Image.fromarray(half(k, shape=(12, 30)).astype(np.uint8))
    (image.convert("RGB") if i % 2 else image).save(folder / f"{i}.png")


def hospital(folder, make, each=6):
    for site in ("Köln", "Ulm"):
        for k, name in enumerate(CLASSES):
            (folder / site / name).mkdir(parents=True)
            for i in range(each):
                make(folder / site / name, k, i)
    return folder


def train(tmp_path, path, *settings, config="folder"):
    command = [
        "run",
        config,
        f"--data.path={path}",
        f"--data.root={tmp_path / 'root'}",
        "--model.name=mlp",
    ]
    fields = ("--data.client_test_fraction=0.3", "--rounds=2", "--workdir", str(tmp_path / "run"))
    assert cli.main([*command, *fields, *settings]) == 0
    return load_run(tmp_path / "run")


@pytest.fixture
def predict(tmp_path, call_predict):
    """Calls the command on a run; returns the rows of the CSV and standard error."""

    def call(*arguments):
        code, rows, error = call_predict(tmp_path / "run", *arguments)
        assert code == 0
        return rows, error

    return call


def check_same(model, examples, dataset):
    """What was read for prediction is what was read for training, and so are all probabilities."""
    place = {str(name): row for row, name in enumerate(dataset.train.names)}
    rows = [
        next(row for name, row in place.items() if one.endswith(name)) for one in examples.names
    ]
    assert sorted(rows) == list(range(len(dataset.train)))
    np.testing.assert_array_equal(examples.inputs, dataset.train.x[rows])
    np.testing.assert_array_equal(examples.labels, dataset.train.y[rows])
    np.testing.assert_allclose(
        model.predict(examples.inputs), model.predict(dataset.train.x)[rows], atol=1e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make",
    [turned, wide, sixteen_bits],
)
def test_a_folder_is_read_for_prediction_as_it_was_for_training(tmp_path, predict, make):
    folder = hospital(tmp_path / "scans", make)
    settings = {"size": 10, "fit": "pad"} if make is wide else {}
    model = train(tmp_path, folder, *(f"--data.{name}={value}" for name, value in settings.items()))
    dataset = data.load("folder", tmp_path / "root", path=folder, **settings)
    assert len(np.unique(dataset.train.x)) > 50  # nothing is clipped
    check_same(model, read_examples([folder], model), dataset)
    rows, error = predict(folder)
    assert len(rows) == 24
    assert sum(map(int, re.findall(r"(\d+) of 24 have a label that", error))) == 24
    assert "true class (rows), predicted (columns)" in error and "note:" not in error.replace(
        "note: images of", ""
    )


@pytest.mark.promise
@pytest.mark.thorough
def test_values_kinds_and_sizes_unlike_training_are_told(tmp_path, predict):
    model = train(tmp_path, hospital(tmp_path / "scans", sixteen_bits), "--data.size=10")
    assert (model.reading.fit, model.reading.kinds) == ("crop", ("deep",))
    assert model.reading.levels == (0, 4095)
    new = tmp_path / "new"
    new.mkdir()
    Image.fromarray(np.full((12, 12), 9000, np.uint16)).save(new / "bright.tif")
    wide(new, 0, 1)
    (new / "cut.png").write_bytes(b"")
    rows, error = predict(new, "--resize")
    assert len(rows) == 2
    said = " ".join(error.split())
    assert "1 of 3 images cannot be used: 1 0 bytes, first" in said and "cut.png" in said
    assert "images with values above 4,095, which are shown as white: 1, up to 9,000" in said
    assert "images in colour: 1; the model was trained on images with 16 bits alone" in said
    assert "images of other sizes than 10x10: 2; they are cropped as in training" in said


@pytest.mark.promise
@pytest.mark.thorough
def test_black_and_white_can_be_given_and_come_from_the_training_images(tmp_path):
    folder = hospital(tmp_path / "train", sixteen_bits)
    (tmp_path / "test").mkdir()
    (tmp_path / "scans").mkdir()
    folder.rename(tmp_path / "scans/train")
    test = hospital(tmp_path / "scans/test", sixteen_bits)
    Image.fromarray(np.full((12, 12), 9000, np.uint16)).save(test / "Ulm/upper/0.png")
    found = data.load("folder", tmp_path, path=tmp_path / "scans")
    assert found.reading.levels[1] == 4095
    assert (found.test.x == 255).all(axis=(1, 2, 3)).sum() == 1
    assert "shown as white: 1, up to 9,000" in " ".join(found.extra["notes"])
    given = data.load("folder", tmp_path, path=tmp_path / "scans", black=500, white=9000)
    assert given.reading.levels == (500, 9000) and given.test.x.max() == 255
    with pytest.raises(ValueError, match="white is 500 and black 500; white must be greater"):
        data.load("folder", tmp_path, path=tmp_path / "scans", black=500, white=500)


@pytest.mark.thorough
@pytest.mark.promise
def test_a_table_beside_images_is_used_at_prediction(tmp_path, predict, capsys):
    folder = tmp_path / "scans"
    lines = ["image,diagnosis,hospital"]
    for room in "ab":
        (folder / room).mkdir(parents=True)
        for i in range(12):
            wide(folder / room, i % 2, i)
            (folder / room / f"{i}.png").rename(folder / room / f"{room}{i}.png")
            site = "north" if i < 6 else "south"
            lines.append(f"{room}/{room}{i}.png,{CLASSES[i % 2]},{site}")
    (folder / "about.csv").write_text("\n".join(lines))
    settings = [
        "--data.file_column=image",
        "--data.label_column=diagnosis",
        "--data.client_column=hospital",
    ]
    assert cli.main(["data", "check", str(folder), *settings, "--root", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert " ".join(settings) in output and "north (12), south (12)" in output
    model = train(tmp_path, folder, *settings)
    names = {option.partition("=")[0][7:]: option.partition("=")[2] for option in settings}
    columns = data.load("folder", tmp_path, path=folder, **names)
    assert model.client_names[:2] == ("north", "south") and columns.class_names == CLASSES
    for given in (folder, folder / "about.csv"):
        check_same(model, read_examples([given], model), columns)
    (folder / "about.csv").write_text(
        "\n".join(lines[:-1]).replace("a/a0.png,lower", "a/a0.png,lover")
    )
    rows, error = predict(folder)
    assert (
        len(rows) == 24
        and "note: label 'lover' of 1 example" in error
        and "Did you mean 'lower'?" in error
    )
    unseen, trained = map(int, re.findall(r"(\d+) of 24 have a label that", error))
    assert unseen + trained == 22


@pytest.mark.thorough
def test_names_are_the_same_with_accents_in_either_form(tmp_path, predict):
    folder = tmp_path / "scans"
    for form, site in (("NFC", "a"), ("NFD", "b")):
        for k, name in enumerate(("größer", "kleiner")):
            inner = folder / site / unicodedata.normalize(form, name)
            inner.mkdir(parents=True)
            for i in range(4):
                wide(inner, k, i)
    assert len(train(tmp_path, folder).class_names) == 2
    assert "of 16 have a label that" in predict(folder)[1]


@pytest.mark.promise
@pytest.mark.thorough
def test_arrays_of_medmnist_are_predicted_as_they_were_trained_on(tmp_path):
    images = np.stack([half(i % 2) for i in range(40)]).astype(np.uint8)
    labels = (np.arange(40) % 2)[:, None]
    parts = {"train": slice(0, 24), "val": slice(24, 30), "test": slice(30, 40)}
    arrays = {f"{name}_images": images[rows] for name, rows in parts.items()}
    arrays |= {f"{name}_labels": labels[rows] for name, rows in parts.items()}
    np.savez(tmp_path / "m.npz", **arrays)
    settings = (
        "--data.client_test_fraction=0",
        "--partition.name=iid",
        "--partition.num_clients=2",
    )
    model = train(tmp_path, tmp_path / "m.npz", *settings, config="npz")
    examples = read_examples([tmp_path / "m.npz"], model)
    np.testing.assert_array_equal(examples.labels, labels[30:, 0])
    right = model.predict(examples.inputs).argmax(axis=1) == examples.labels
    assert right.mean() == pytest.approx(model.metrics["test_accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "file", "label", "client"),
    [
        ("scans", "lower/test/1.png", "lower", "scans"),
        ("scans", "west/lower/train/1.png", "lower", "west"),
        ("scans", "train/west/upper/1.png", "upper", "west"),
        ("scans", "west/2024/1.png", "2024", "west"),
        ("scans", "harbor/upper/1.png", "upper", "harbor"),
        ("scans/west/upper", "1.png", "upper", "west"),
        ("scans/west", "1.png", "west", "west"),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_folders_say_class_and_site(path, file, label, client, tmp_path):
    model = SimpleNamespace(
        class_names=CLASSES, scales=Scales({"clients": {"west": {"mean": [0], "std": [1]}}})
    )
    folder = tmp_path / path
    assert _by_folders(folder, folder / file, model) == (label, client)
