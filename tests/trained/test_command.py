"""`fedjax-ssl predict`: files in, labels out, one message where something is wrong."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl import cli


@pytest.fixture
def predict(folder, call_predict):
    return partial(call_predict, folder)


def test_arrays_with_labels(predict, digits, tmp_path):
    file = tmp_path / "images.npz"
    labels = digits.train.y[:20].copy()
    labels[3] = -1
    np.savez(file, inputs=digits.train.x[:20], labels=labels)
    code, rows, error = predict(file, "--checkpoint", "last", "--all")
    assert code == 0 and len(rows) == 20
    right = sum(row["label"] == row["true_label"] for row in rows)
    assert f"{right / 19:.2%} (19 of 20 have a label)" in error and "array 'inputs'" in error
    assert (
        rows[3]["true_label"] == ""
        and rows[0]["input"] == "0"
        and rows[0]["name"] == rows[0]["label"]
    )
    every = [float(rows[0][f"probability_{name}"]) for name in range(10)]
    assert sum(every) == pytest.approx(1, abs=1e-4) and max(every) == float(rows[0]["probability"])


def test_labels_of_arrays_go_by_the_names_of_their_own_classes(predict, digits, tmp_path):
    file = tmp_path / "images.npz"
    named = {"class_names": np.array(list("9876543210"))}
    np.savez(file, inputs=digits.train.x[:9], labels=9 - digits.train.y[:9], **named)
    code, rows, _ = predict(file)
    assert code == 0
    assert [row["true_name"] for row in rows] == list(map(str, digits.train.y[:9]))
    np.savez(file, inputs=digits.train.x[:2], labels=[0, 1], class_names=np.array(["cat", "1"]))
    code, rows, error = predict(file)
    assert code == 0 and len(rows) == 2
    assert "label 'cat' of 1 example (row 0) is none of the classes" in error
    assert "(1 of 2 have a label)" in error


def test_numbers_of_no_class_are_predicted_and_named(predict, tmp_path):
    np.savez(tmp_path / "x.npz", inputs=IMAGES, labels=np.array([0, 10]))
    code, rows, error = predict(tmp_path / "x.npz")
    assert code == 0 and [row["true_label"] for row in rows] == ["0", ""]
    assert "label 'number 10' of 1 example (row 1) is none of the classes" in error


def test_labels_go_to_a_file(predict, digits, tmp_path):
    file = tmp_path / "images.npz"
    # grey images, without a channel axis and without labels
    np.savez(file, images=digits.train.x[:3, ..., 0])
    code, rows, error = predict(file, "--output", tmp_path / "new" / "labels.csv")
    assert code == 0 and not rows and "accuracy" not in error.replace("test accuracy", "")
    lines = (tmp_path / "new" / "labels.csv").read_text().splitlines()
    assert lines[0] == "input,label,name,probability" and len(lines) == 4


def test_images_in_folders_with_the_names_of_classes(predict, model, digits, tmp_path):
    folders = [*map(str, digits.train.y[:2]), "other", ""]  # the last lies beside the classes
    for row, name in enumerate(folders):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True, exist_ok=True)
        # As an image goes from 0 to 255, the digits from 0 to 16.
        pixels = np.rint(digits.train.x[row, ..., 0] * (255 / 16)).astype(np.uint8)
        turned = Image.fromarray(pixels[::-1, ::-1]).convert("RGB")
        exif = Image.Exif()
        exif[0x0112] = 3  # turn it by half, as sources do that are trained on
        turned.save(folder / f"{row}.png", exif=exif)
    code, rows, error = predict(tmp_path / "images", "--checkpoint", "last")
    assert code == 0 and "(2 of 4 have a label)" in error
    assert "label 'other' of 1 example" in error and "'images'" not in error
    found = {row["input"].rpartition("/")[2]: row for row in rows}
    expected = model.predict(digits.train.x[:4])
    for row in range(4):
        assert float(found[f"{row}.png"]["probability"]) == pytest.approx(
            expected[row].max(), abs=1e-5
        )
    assert found["2.png"]["true_label"] == ""


def test_export(predict, tmp_path):
    pytest.importorskip("safetensors")
    code, rows, error = predict("--export", tmp_path / "out")
    assert code == 0 and not rows and "parameters.safetensors" in error
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["parameters.safetensors"]


def large(path):
    Image.new("RGB", (20, 10)).save(path / "large.png")
    return "large.png"


def deep(path):
    Image.new("I;16", (8, 8)).save(path / "deep.png")
    return "deep.png"


def broken(path):
    (path / "broken.png").write_bytes(b"no image")
    return "broken.png"


def table(folder):
    (folder / "rows.csv").write_text("a,b\n1,2\n")
    return "rows.csv"


def empty(path):
    (path / "empty").mkdir()
    return "empty"


def arrays(name="x.npz", **given):
    def write(path):
        np.savez(path / name, **given)
        return name

    return write


IMAGES = np.zeros((2, 8, 8, 1), np.uint8)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: "none.npz", "none.npz does not exist"),
        (large, "has 20x10 pixels, the model takes 8x8; --resize"),
        (deep, "1 with 16 bits, and not of 8 as in training, first"),
        (broken, "1 of 1 image cannot be used: 1 no image, whatever its name says, first "),
        (
            table,
            "rows.csv cannot be labelled: this model did not learn from a table; it takes inputs "
            "of shape [8, 8, 1]",
        ),
        (
            arrays(a=IMAGES, b=IMAGES),
            "has no array of inputs. Arrays in it: a, b; known names: test_inputs",
        ),
        (
            arrays(inputs=IMAGES, labels=np.array([0])),
            "array 'labels' has shape (1,); expected (2,), one per example",
        ),
        (
            arrays(inputs=np.array([{}, {}])),
            "array 'inputs' holds Python objects, which are refused",
        ),
        (
            arrays(inputs=IMAGES + 0.5),
            "inputs are float64, from 0.5 to 0.5; this model takes them as its dataset stores",
        ),
    ],
)
def test_a_mistake_gets_one_message_and_exit_code_2(predict, tmp_path, make, expected):
    code, rows, error = predict(tmp_path / make(tmp_path))
    assert code == 2 and not rows
    assert error.count("error:") == 1 and "Traceback" not in error and expected in error, error


def test_other_mistakes(predict, call_predict, tmp_path):
    assert predict()[0] == 2
    np.savez(tmp_path / "x.npz", inputs=IMAGES)
    code, _, error = predict(tmp_path / "x.npz", "--client", "3")
    assert code == 2 and "all clients have the global model" in error
    code, _, error = call_predict(tmp_path, tmp_path / "x.npz")
    assert code == 2 and "is not a run folder" in error
    (tmp_path / "sweep.json").touch()
    (tmp_path / "runs/seed=0").mkdir(parents=True)
    (tmp_path / "runs/seed=0/config.json").touch()
    code, _, error = call_predict(tmp_path, tmp_path / "x.npz")
    assert code == 2 and f"give one of its runs: {tmp_path / 'runs/seed=0'}" in error
    assert cli.main(["cite", str(tmp_path)]) == 2
