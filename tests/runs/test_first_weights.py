"""A start from another run's weights: every method begins with them, and needs their folder at
no later time.
"""

import importlib.util
import shutil
import warnings

import chex
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import fedjax_ssl as fs
from fedjax_ssl import cli
from fedjax_ssl.data.reading.table_reading import Feature, TableReading
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.runs.build import load_experiment
from fedjax_ssl.runs.first_weights import _note_fills, _note_standardization, round_of, start_of
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.program import static_part
from fedjax_ssl.runs.shared import Shared

NETWORK = {"model.name": "mlp", "model.hidden": (8,), "model.norm": "bn"}
NNX = """
import fedjax_ssl as fs
from flax import nnx

class Net(nnx.Module):
    def __init__(self, num_classes, rngs):
        self.layers = nnx.List([nnx.Linear(64, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)])
        self.head = nnx.Linear(8, num_classes, rngs=rngs)

    def __call__(self, x, mask):
        first, norm = self.layers
        x = nnx.relu(norm(first(x.reshape(len(x), -1)), mask=mask[:, None]))
        return self.head(x), x


def net(num_classes):
    return fs.from_nnx(lambda rngs: Net(num_classes, rngs))
"""


def config_of(name="digits_fedavg", **settings):
    return fs.load_config(
        name, {"rounds": 1, "eval_every": 1, "metrics": (), **NETWORK, **settings}
    )


@pytest.fixture(scope="module")
def shared():
    return Shared()


@pytest.fixture(scope="module")
def source(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("start") / "other"
    run(config_of(seed=5, rounds=2), folder, shared=shared, quiet=True)
    return folder


def network_at_start(config):
    program = Shared().program(fs.config.resolve(config))
    return program.built.method.network(program.init())


def by_name(params, state):
    return {
        name: np.asarray(value)
        for name, value in flatten_dict({"params": params, "batch_stats": state}, sep=".").items()
    }


def written(path, arrays):
    pytest.importorskip("safetensors.numpy").save_file(arrays, path)
    return str(path)


@pytest.mark.thorough
@pytest.mark.promise
def test_a_run_starts_where_another_ended_and_needs_it_no_more(source, shared, tmp_path):
    model = fs.load_run(source)
    kept = tmp_path / "kept"
    saved = model.save_parameters(tmp_path / "saved.safetensors")
    config = config_of(start_from=str(kept))
    shutil.copytree(source, kept)
    of_folder, of_file = (
        network_at_start(config_of(start_from=str(place))) for place in (kept, saved)
    )
    chex.assert_trees_all_equal(of_folder, of_file)
    trained = jax.tree.map(np.asarray, model._method.network(model._state))
    chex.assert_trees_all_equal(of_folder, trained)
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    config.rounds = 2
    expected = run(config, whole, shared=shared, quiet=True)
    config.rounds = 1
    run(config, cut, shared=shared, quiet=True)
    shutil.rmtree(kept)
    config.rounds = 2
    assert fs.run(config, cut, quiet=True)["test_loss"] == expected["test_loss"]
    images = fs.load_dataset("digits").train.x[:5]
    np.testing.assert_array_equal(
        fs.load_run(cut).predict(images), fs.load_run(whole).predict(images)
    )
    assert static_part(fs.config.resolve(config)) == static_part(
        fs.config.resolve(config_of(rounds=2))
    )


@pytest.mark.parametrize(
    "method",
    [
        *("fedmatch", "own"),
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("fedrep", "fedavg", "fedsiam", "protofssl")
        ),
    ],
)
def test_every_method_starts_from_parameters_and_statistics(tmp_path, monkeypatch, method):
    settings = {}
    if method == "own":
        (tmp_path / "nets_of_start.py").write_text(NNX)
        monkeypatch.syspath_prepend(tmp_path)
        settings = {"model.name": "nets_of_start:net", "model.hidden": None, "model.norm": None}
    config = config_of(f"digits:{'fedavg' if method == 'own' else method}", **settings)
    if method == "fedmatch":
        config.method.psi_factor = 0.0
    drawn = by_name(*network_at_start(config))
    random = np.random.default_rng(0)
    arrays = {
        name: random.uniform(0.5, 1, value.shape).astype(np.float32)
        for name, value in drawn.items()
    }
    assert any(name.startswith("batch_stats") for name in arrays)
    config.start_from = written(tmp_path / "start.safetensors", arrays)
    chex.assert_trees_all_equal(by_name(*network_at_start(config)), arrays)


@pytest.mark.promise
@pytest.mark.thorough
def test_one_function_of_a_key_starts_there_too(source):
    train = fs.make_train(config_of(start_from=str(source), **{"optimizer.learning_rate": 0.0}))
    state, _ = train(jax.random.key(1))
    chex.assert_trees_all_equal(state.params, fs.load_run(source)._state.params)


@pytest.mark.promise
@pytest.mark.thorough
def test_without_a_round_the_other_run_predicts(source, tmp_path):
    settings = {"rounds": 0, "prediction.predictors": "network", "start_from": str(source)}
    summary = fs.run(config_of(seed=5, **settings), tmp_path / "run", quiet=True)
    assert summary["predictions"][0]["accuracy"] == fs.load_run(source).metrics["test_accuracy"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model.hidden": (9,)}, "has shape (8,), this network needs (9,)"),
        ({"model.norm": "none"}, "left over"),
        ({"start_from": "nowhere"}, "run folder nowhere does not exist"),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_weights_that_do_not_fit_are_named(source, tmp_path, capsys, settings, expected):
    fields = {**NETWORK, "start_from": str(source), **settings}
    values = [
        f"--{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in fields.items()
    ]
    assert cli.main(["run", "digits_fedavg", "--workdir", str(tmp_path / "run"), *values]) == 2
    said = capsys.readouterr().err
    assert "config.start_from" in said and expected in said and not (tmp_path / "run").exists()


CLASSES = ("neg", "pos")


def of_table(folder, columns, classes, **settings):
    """A config on rows whose columns and classes have these names, in this order."""
    random = np.random.default_rng(0)
    lines = [",".join((*columns, "label", "client"))]
    for row in range(40):
        numbers = [f"{value:.3f}" for value in random.normal(size=len(columns))]
        lines.append(",".join((*numbers, classes[row % 2], "pq"[row // 2 % 2])))
    path = folder / f"{'-'.join((*columns, *classes))}.csv"
    path.write_text("\n".join(lines))
    held_out = {"data.client_test_fraction": 0.25, "data.validation_fraction": 0}
    fields = {"data.path": str(path), "data.root": str(folder), **held_out}
    return config_of("table", **fields, **{"model.hidden": (4,)}, **settings)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    run(of_table(folder, "abc", CLASSES), folder / "run", quiet=True)
    if importlib.util.find_spec("safetensors"):
        fs.load_run(folder / "run").save_parameters(folder / "run.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["run", "run.safetensors"])
@pytest.mark.parametrize(
    ("columns", "classes", "options", "expected"),
    [
        ("cba", CLASSES, {}, r"another order; .*data\.features=a,b,c"),
        # in its order, and of another mean: the rows are others
        ("cba", CLASSES, {"data.features": tuple("abc")}, "so that its network sees other values"),
        ("abd", CLASSES, {}, "columns a, b, c, and these are a, b, d: other columns"),
        ("abc", ("neg", "a"), {}, r"classes neg, pos, and these are a, neg: in another order"),
        ("abc", ("pos", "neg"), {"data.classes": ("pos", "neg")}, r"data\.classes=neg,pos"),
        ("abc", ("well", "ill"), {}, "neg, pos, and these are ill, well: other classes"),
        ("abc", CLASSES, {"model.activation": "none"}, 'activation="relu", and this one "none"'),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_classes_and_columns_are_those_of_the_same_name(
    of_rows, kind, columns, classes, options, expected
):
    place = of_rows / kind
    if not place.exists():
        pytest.skip("safetensors is not there")
    config = of_table(of_rows, columns, classes, start_from=str(place), **options)
    experiment = load_experiment(config)
    with pytest.raises((ValueError, fs.config.ConfigNote), match=expected):
        start_of(experiment)


@pytest.mark.promise
@pytest.mark.thorough
def test_inputs_that_are_standardized_otherwise_than_in_training_are_said():
    x = np.zeros((4, 2), np.float32)
    train = fs.data.Split(x, np.arange(4) % 2)
    now = {"mean": (0.8, 0.0), "std": (0.5, 1.0), "input_max": 1.0}
    dataset = fs.data.Dataset("toy", train, None, ("a", "b"), **now)
    before = {"mean": [0.0, 0.0], "std": [1.0, 1.0], "clients": None}
    with pytest.warns(ConfigNote, match=r"--data.mean='\(0,0,\)' --data.std='\(1,1,\)'") as said:
        _note_standardization(before, dataset)
    assert "by mean 0, 0 and deviation 1, 1, and these are by mean 0.8, 0" in str(said[0].message)
    with pytest.warns(ConfigNote, match="likewise: --data.standardize=client"):
        _note_standardization({**before, "clients": {"north": {}}}, dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _note_standardization({**before, **now}, dataset)
        _note_standardization({}, dataset)


@pytest.mark.promise
@pytest.mark.thorough
def test_missing_cells_that_are_filled_in_otherwise_than_in_training_are_said():
    def reading(median, **changed):
        fields = {"roles": {}, "missing": "median", **changed}
        features = Feature("a", "number", fill=median), Feature("b", "number")
        return TableReading(**fields, features=features)

    # One deviation for all columns, as `data.std` may give it.
    before = {"reading": reading(0.5).as_json(), "inputs": {"std": [2.0]}}
    with pytest.warns(ConfigNote, match=r"other medians in its training: a \(0.5, and here 0.71\)"):
        _note_fills(before, reading(0.71))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _note_fills(before, reading(0.69))
        _note_fills(before, reading(0.71, missing="drop"))
        _note_fills({}, reading(0.71))
        _note_fills(before, None)


@pytest.mark.promise
@pytest.mark.thorough
def test_the_round_that_a_run_starts_from_is_said(source, tmp_path):
    assert round_of(source) == "round 2 of 2, the last one"
    shutil.copytree(source, tmp_path / "chosen")
    shutil.copytree(source / "checkpoints", tmp_path / "chosen" / "best")
    assert round_of(tmp_path / "chosen") == "round 2 of 2, the best by its validation examples"
    (tmp_path / "chosen" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "chosen" / "best")
    assert round_of(tmp_path / "chosen") == "round 2 of 2, the last one so far"
