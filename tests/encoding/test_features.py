"""`fedjax-ssl features`: a folder of features, stops and all, and heads that are trained on it."""

import contextlib
import errno
import io
import json

import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import data
from fedjax_ssl.cli import main
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data.sources import features as encoded
from fedjax_ssl.encoding import write
from fedjax_ssl.encoding.encoders import Encoder, checked
from fedjax_ssl.errors import UserError
from fedjax_ssl.folder.files import StorageError
from fedjax_ssl.methods.parts.views_and_teachers import second_pass
from tests import toy

BLOCK = 16


def halves(inputs):
    """Return a feature vector of four numbers: sums of the quarters of an image."""
    flat = np.asarray(inputs, np.float32).reshape(len(inputs), 4, -1)
    return flat.sum(axis=2) / 255


def wanted(encode=halves, views=2, count=40, **others):
    digits = fs.load_dataset("digits")
    x = digits.train.x[:count]
    train = data.Split(x, digits.train.y[:count], client=np.arange(count) % 2)
    dataset = data.Dataset("some", train, data.Split(x[:5], digits.train.y[:5]), digits.class_names)
    weak = data.augmentation("shift", pixels=1)
    fields = {
        "dataset": dataset,
        "encoder": Encoder({"own": "halves"}, encode),
        "name": "halves",
        "weak": weak,
        "strong": lambda key, images: 255 - images,
        "views": views,
        "augmentation": {},
        "seed": 0,
        "block": BLOCK,
    }
    return write.Wanted(**{**fields, **others})


def encode_all(one, folder):
    return list(write.write(one, write.describe(one), folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features") / "whole"
    encode_all(wanted(), folder)
    return folder


def test_a_folder_is_the_dataset_with_other_inputs(whole):
    one = wanted().dataset
    found = data.load("features", path=whole)
    assert (found.views, found.input_shape) == ((2, 2), (4,))
    assert found.train.x.dtype == np.float16
    np.testing.assert_array_equal(found.train.y, one.train.y)
    np.testing.assert_array_equal(found.train.client, one.train.client)
    np.testing.assert_allclose(found.train.x[:, 0], halves(one.train.x), rtol=1e-3)
    np.testing.assert_allclose(found.train.x[:, 3], halves(255 - one.train.x), rtol=1e-3)
    np.testing.assert_allclose(found.test.x[:, 4], halves(one.test.x), rtol=1e-3)
    assert not np.array_equal(found.train.x[:, 1], found.train.x[:, 2])


def test_after_a_stop_and_a_full_disk_the_rest_gives_the_same_bits(whole, tmp_path, monkeypatch):
    one = wanted()
    folder = tmp_path / "stopped"
    next(write.write(one, write.describe(one), folder))
    steps = write.write(one, write.describe(one), folder)
    next(steps), next(steps)
    steps.close()
    file = encoded.array_file(folder, "train")
    file.write_bytes(file.read_bytes() + b"half of a block")
    with pytest.raises(ValueError, match="16 of 40 train examples are encoded"):
        data.load("features", path=folder)

    def full(self, features):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="encoded stays"):
        patch.setattr(encoded.Rows, "add", full)
        encode_all(one, folder)
    encode_all(one, folder)
    for split in ("train", "test"):
        file = encoded.array_file(folder, split)
        assert file.read_bytes() == encoded.array_file(whole, split).read_bytes()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"count": 39}, "another encoder: data.training_examples is 39, was 40; data.inputs is"),
        ({"views": 1}, "weak is 1, was 2"),
        ({"encode": lambda inputs: 2 * halves(inputs)}, "gives other features of the first"),
    ],
)
def test_a_folder_of_something_else_stays_as_it_is(whole, others, message):
    before = encoded.array_file(whole, "train").read_bytes()
    with pytest.raises(UserError, match=message):
        encode_all(wanted(**others), whole)
    assert encoded.array_file(whole, "train").read_bytes() == before


def test_no_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(write.shutil, "disk_usage", lambda path: type("", (), {"free": 100}))
    with pytest.raises(StorageError, match=r"take 1.64 kB, and the disk of .* has 100 B left"):
        encode_all(wanted(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((3, 4)), "3, 4.* for 2 inputs"),
        (np.ones((2, 4), int), r"floating-point \[2, d\] has to come"),
        (np.ones((2, 5)), "returned 5 numbers for an input and 4 for earlier ones"),
        (np.full((2, 4), 1e6), "beyond 65,504"),
        (np.full((2, 4), np.nan), "NaN"),
    ],
)
def test_what_an_encoder_must_not_return(features, message):
    with pytest.raises(UserError, match=message):
        checked(features, 2, 4, "net")


@pytest.fixture(scope="module")
def encoded_digits(tmp_path_factory):
    """Encode the digits by the command, with a function of a user's own, in a folder `f`."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "quarters.py").write_text(
        "import numpy as np\n"
        "def net(inputs):\n"
        "    return np.asarray(inputs, np.float32).reshape(len(inputs), 16, -1).mean(2) / 255\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        command = ["features", "digits:fixmatch", "--encoder", "quarters:net", "--output", "f"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main([*command, "--views", "1", "--block", "600"]) == 0
        with contextlib.redirect_stderr(io.StringIO()) as wrong:
            assert main([*command, "--weights", "w.npz"]) == 2
    assert "--weights is for networks of timm" in wrong.getvalue()
    return folder / "f", said.getvalue()


def test_the_command_says_what_it_does(encoded_digits):
    folder, said = encoded_digits
    assert "1,797 training examples (as they are, 1 weak and 1 strong views of each)" in said
    ready = f"ready: fedjax-ssl run features --data.path={folder.name}"
    assert f"{ready} --data.client_test_fraction=0.2\n" in said
    assert json.loads((folder / "features.json").read_text())["width"] == 16


def settings_of(folder, **others):
    return {"data.path": str(folder), "rounds": 2, "data.client_test_fraction": 0.2, **others}


def test_augmentation_has_no_use_beside_stored_views(encoded_digits, tmp_path):
    config = fs.load_config("features", settings_of(encoded_digits[0], **{"augment.name": "flip"}))
    with pytest.raises(ConfigError, match="hold views of their own"):
        fs.run(config, tmp_path / "run", quiet=True)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*hides:fedjax_ssl.errors.ConfigNote")
@pytest.mark.parametrize(
    "config", ["fixmatch,per_client", "uda,per_client", "protofssl,per_class", "xclp,per_client"]
)
def test_heads_train_on_stored_views_and_predict(encoded_digits, tmp_path, config):
    folder = encoded_digits[0]
    config = fs.load_config(f"features:{config}", settings_of(folder))
    assert fs.run(config, tmp_path / "run", quiet=True)["test_accuracy"] > 0.1
    new = data.load("features", path=folder).train.x[:3, 0].astype(np.float32)
    assert fs.load_run(tmp_path / "run").predict(new).shape == (3, 10)


def test_fewer_weak_views_than_a_method_draws():
    one = toy.setup(toy.federation(), stored_views=1)
    for method, draws in (("mixmatch", 2), ("mixmatch", 3)):
        with pytest.raises(
            ValueError, match=rf"draws {draws} weak views .* 1; .* --views {draws}`"
        ):
            fs.methods.recipe(method, one, num_augmentations=draws)
    fs.methods.recipe("mixmatch", one._replace(stored_views=2))
    with pytest.raises(ValueError, match=r"hold none; encode them .* --views 2`"):
        second_pass(one._replace(stored_views=0), None, None, None)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*hides:fedjax_ssl.errors.ConfigNote")
@pytest.mark.parametrize("method", ["pi_model", "mean_teacher", "fedsiam"])
def test_methods_of_two_weak_views_need_them(encoded_digits, tmp_path, method):
    config = fs.load_config(f"features:{method},per_client", settings_of(encoded_digits[0]))
    with pytest.raises(ValueError, match=r"draws 2 weak views .* hold 1; .* --views 2`"):
        fs.run(config, tmp_path / "run", quiet=True)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*hides:fedjax_ssl.errors.ConfigNote")
def test_a_method_that_draws_strong_views_needs_them(encoded_digits, tmp_path):
    plain = data.load("features", path=encoded_digits[0])
    path = tmp_path / "plain.npz"
    client = plain.train.client
    np.savez(path, inputs=plain.train.x[:, 0], labels=plain.train.y, client=client)
    config = fs.load_config("features:fixmatch,per_client", settings_of(path))
    with pytest.raises(ValueError, match="the method draws strong views, and the features hold"):
        fs.run(config, tmp_path / "run", quiet=True)
