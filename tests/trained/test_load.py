"""A run folder as a model: the same predictions as in the run, without its data."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import data, load_run, presets
from fedjax_ssl.config import resolve
from fedjax_ssl.encoding.encoders import encoder
from fedjax_ssl.errors import UserError
from fedjax_ssl.runs.build import federate, load_experiment, load_resolved
from fedjax_ssl.runs.loop import run
from fedjax_ssl.trained import TrainedModelError
from tests.trained.conftest import experiment


def test_it_predicts_what_the_run_was_scored_by(model, digits):
    federation = federate(load_experiment(experiment()), jax.random.key(0))
    rows = np.asarray(federation.test_index)[: int(federation.num_test)]
    images = np.asarray(federation.inputs)[rows]
    labels = np.asarray(federation.labels)[rows]
    probabilities = model.predict(images, batch_size=64)
    assert probabilities.shape == (len(rows), 10) and probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    right = probabilities.argmax(axis=1) == labels
    assert right.mean() == pytest.approx(model.metrics["test_accuracy"], abs=1e-6)
    # By client, with the writers' names.
    owner = np.asarray(federation.test_client)[: int(federation.num_test)]
    for number in np.unique(owner):
        name = model.client_names[number]
        writer = digits.train.client[rows[owner == number][0]]
        assert name == digits.client_names[writer]
        text = (model.path / "client_accuracy.csv").read_text().splitlines()
        last = dict(zip(text[0].split(","), text[-1].split(","), strict=True))
        assert float(last[name]) == pytest.approx(right[owner == number].mean(), abs=1e-6)


def test_batches_do_not_matter_and_features_have_the_width_of_the_head(model, digits):
    images = digits.train.x[:9]
    whole = model.predict(images)
    assert (model.input_shape, model.input_dtype, model.input_max) == ((8, 8, 1), np.uint8, 16.0)
    assert (
        str(model).startswith("<fedavg on digits, round 4, test accuracy ")
        and model.config.is_locked
    )
    np.testing.assert_allclose(model.predict(images, batch_size=2), whole, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.predict(images[3:4])[0], whole[3], rtol=1e-5, atol=1e-7)
    assert model.predict(images[:0]).shape == (0, 10)
    assert model.embed(images).shape == (9, 128)


def test_the_same_values_in_other_types_and_shapes_are_the_same(model, digits):
    images = digits.train.x[:9]
    whole = model.predict(images)
    for same in (
        images[..., 0],
        images.reshape(9, 64),
        images.astype(float),
        images.astype(np.int16)[..., 0].tolist(),
    ):
        np.testing.assert_array_equal(model.predict(same), whole)


def test_the_best_checkpoint_is_that_of_the_summary(folder):
    best = load_run(folder)
    assert best.checkpoint == "best" and best.round == best.summary["selected_round"]
    assert best.metrics["test_accuracy"] == best.summary["selected_test_accuracy"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    accuracies = [json.loads(line)["validation_accuracy"] for line in lines]
    assert best.round == 1 + int(np.argmax(accuracies))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            np.zeros((8, 8, 1), np.uint8),
            r"shape \[8, 8, 1\]; this model takes \[n, 8, 8, 1\].* give inputs\[None\]",
        ),
        (np.zeros((5, 8, 7), np.uint8), r"shape \[5, 8, 7\]; this model takes \[n, 8, 8, 1\]"),
        (
            np.full((5, 8, 8, 1), 0.5),
            r"inputs are float64, from 0.5 to 0.5; this model takes .*\(uint8\) from 0 to 16",
        ),
        (np.ones((5, 8, 8)), "neither divided nor standardized"),
        (
            np.full((5, 64), -1),
            r"inputs are int64, from -1 to -1; this model takes .*\(uint8\) from 0 to 16",
        ),
        (
            np.full((5, 8, 8, 1), 200, np.uint8),
            "inputs are uint8, from 200 to 200; this model takes .* from 0 to 16",
        ),
        (np.full((5, 8, 8, 1), np.nan), "NaN or infinite"),
    ],
)
def test_other_inputs_are_refused(model, inputs, expected):
    with pytest.raises(TrainedModelError, match=expected):
        model.predict(inputs)


def test_a_client_is_asked_for_only_where_clients_have_models(model):
    with pytest.raises(
        TrainedModelError, match="method 'fedavg' all clients have the global model"
    ):
        model.predict(np.zeros((1, 8, 8, 1), np.uint8), client=0)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: shutil.rmtree(path), "does not exist"),
        (
            lambda path: (path / "config.json").unlink(),
            "is not a run folder: it has no config.json",
        ),
        (lambda path: (path / "model.json").unlink(), "has no model.json: .* does not train anew"),
        (
            lambda path: (path / "model.json").write_text('{"version": 99}'),
            "has version 99, this fedjax_ssl reads",
        ),
        (lambda path: (path / "model.json").write_text("{"), "cannot be read"),
        (
            lambda path: (path / "model.json").write_text(
                '{"version": 1, "reading": {"kind": "x"}}'
            ),
            "does not know",
        ),
        (
            lambda path: (path / "model.json").write_text(
                '{"version": 1, "reading": {"kind": "TableReading", "roles": {}, '
                '"features": [{"name": "a", "center": 0.5}]}}'
            ),
            "'center'.*; train again",
        ),
        (lambda path: shutil.rmtree(path / "checkpoints"), "has no checkpoint yet"),
    ],
)
def test_a_folder_without_a_model_says_what_is_missing(folder, tmp_path, damage, expected):
    with pytest.raises(TrainedModelError, match="Runs in it: digits"):
        load_run(folder.parent)
    with pytest.raises(TrainedModelError, match=f"does not exist; .* Did you mean '{folder}'"):
        load_run(f"{folder}s")
    copy = shutil.copytree(folder, tmp_path / "copy")
    damage(copy)
    with pytest.raises(TrainedModelError, match=expected):
        load_run(copy, "last")


def test_a_run_without_validation_examples_has_no_best_one(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "best")
    assert load_run(copy).checkpoint == "last"
    with pytest.raises(
        TrainedModelError, match=r"no validation examples \(config.data.validation_fraction\)"
    ):
        load_run(copy, "best")
    with pytest.raises(TrainedModelError, match="allowed: auto, best, last"):
        load_run(copy, "newest")


@pytest.mark.thorough
def test_the_data_are_not_needed_and_little_is_imported(folder, tmp_path):
    code = (
        "import sys, fedjax_ssl\nimport numpy as np\nmodel = "
        f"fedjax_ssl.load_run({str(folder)!r})\nprint(model.predict(np.zeros((1, 8, 8, 1), "
        "np.uint8)).shape, 'matplotlib' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.split("\n")[0] == "(1, 10) False", done.stderr


def of_npz(tmp_path, dtype, **fields):
    """A run on features or images of one's own, of two sites."""
    generator = np.random.default_rng(0)
    inputs = (
        generator.integers(0, 255, (60, 6)) if dtype == np.uint8 else generator.normal(size=(60, 6))
    )
    file = tmp_path / "own.npz"
    sites = np.array(["north", "south"])[np.arange(60) % 2]
    np.savez(file, inputs=inputs.astype(dtype), labels=np.arange(60) // 2 % 3, client=sites)
    config = presets.digits_by_writer("fedavg", "all")
    config.data.update(
        {"name": "npz", "path": str(file), "client_test_fraction": 0.3, "test_clients": 0}
    )
    config.data.root = str(tmp_path)
    config.rounds = 2
    config.eval_every = 1
    config.model.hidden = (5,)
    with config.unlocked():
        config.update_from_flattened_dict(fields)
    run(config, tmp_path / "run")
    file.unlink()
    return load_run(tmp_path / "run"), inputs.astype(dtype)


@pytest.mark.thorough
def test_clients_with_models_of_their_own_are_asked_by_name(tmp_path):
    model, inputs = of_npz(tmp_path, np.float32, **{"federated.name": "local"})
    north, south = (model.predict(inputs, client=name) for name in ("north", "south"))
    assert np.abs(north - south).max() > 1e-3
    np.testing.assert_array_equal(model.predict(inputs.astype(np.float64), client=1), south)
    with pytest.raises(
        TrainedModelError, match=r"trained alone, .* whose model is to be used: north, south"
    ):
        model.predict(inputs)
    with pytest.raises(TrainedModelError, match=r"unknown client 'nort'\. Did you mean 'north'\?"):
        model.predict(inputs, client="nort")
    with pytest.raises(TrainedModelError, match="has no global model, and so no features"):
        model.embed(inputs)
    with pytest.raises(TrainedModelError, match="NaN or infinite"):
        model.predict(np.full((1, 6), np.nan), client=0)
    whole = np.rint(inputs)
    np.testing.assert_array_equal(
        model.predict(whole.astype(int), client=0), model.predict(whole, client=0)
    )


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.config.ConfigNote")
@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("digits_*.py")))
def test_every_method_predicts_what_its_run_was_scored_by(tmp_path, call_predict, name):
    """Own heads, two parameter groups, a bank of prototypes, a teacher, labels at the server,
    groups, sets.
    """
    config = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"]()
    config.rounds = 2
    config.eval_every = 1
    if "warmup_rounds" in config.method:
        config.method.warmup_rounds = 1
    run(config, tmp_path)
    model = load_run(tmp_path, "last")
    federation = federate(load_resolved(resolve(config)), jax.random.key(config.seed))
    rows = np.asarray(federation.test_index)[: int(federation.num_test)]
    images = np.asarray(federation.inputs)[rows]
    labels = np.asarray(federation.labels)[rows]
    np.savez(tmp_path / "test.npz", inputs=images.astype(float)[..., 0], labels=labels[:, None])
    code, lines, error = call_predict(tmp_path, tmp_path / "test.npz", "--checkpoint=last", "--all")
    assert code == 0
    found = [[float(line[f"probability_{name}"]) for name in model.class_names] for line in lines]
    np.testing.assert_allclose(found, model.predict(images), atol=1e-6)
    accuracy = model.metrics["test_accuracy"]
    assert np.mean(np.argmax(found, axis=1) == labels) == pytest.approx(accuracy, abs=1e-6)
    assert f"accuracy    {accuracy:.2%} (all have a label)" in error


def test_as_an_encoder_a_run_is_known_by_its_parameters(folder, digits):
    found = encoder(str(folder), digits, None, None)
    model = load_run(folder)
    some = digits.train.x[:3]
    np.testing.assert_array_equal(found.encode(some), model.embed(some))
    assert found.known_by["parameters"] == model.digest()
    model._state = model._state._replace(params=jax.tree.map(jnp.zeros_like, model._state.params))
    assert model.digest() != found.known_by["parameters"]
    other = data.Dataset("some", data.Split(some[:, :4], np.arange(3)), None, ("a", "b", "c"))
    with pytest.raises(UserError, match=r"inputs of shape \[8, 8, 1\]; those of 'some' have"):
        encoder(str(folder), other, None, None)
