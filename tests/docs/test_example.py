"""Code in docs/ works as it stands there."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import data, presets
from fedjax_ssl.runs.build import build, load_experiment
from fedjax_ssl.train import make_train

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARK = "<!-- tests/docs/test_example.py runs this block. -->"
NAME = "entropy_minimization"


def run_block(page: str) -> dict[str, Any]:
    """Runs the one marked block of a page; returns the names it defines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(re.escape(MARK) + r"\n```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    namespace: dict[str, Any] = {}
    exec(compile(blocks[0], str(DOCS / page), "exec"), namespace)
    return namespace


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> str:
    """The method of extending.md, in a module as the page says; returns the name that a config
    uses.
    """
    module = ModuleType("my_methods")
    module.__dict__.update(run_block("extending.md"))
    monkeypatch.setitem(sys.modules, "my_methods", module)
    return f"my_methods:{NAME}"


@pytest.mark.thorough
def test_entropy_term_makes_predictions_surer_and_the_network_learns(recipe: str) -> None:
    config = presets.digits_by_writer(recipe, 5)
    config.rounds = config.eval_every = 6
    config.method.warmup_rounds = 3
    train = make_train(config)
    experiment = load_experiment(config)

    federation = train.draw(jax.random.key(0))

    def run(key: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        state, metrics = train(key, {"method.entropy_weight": weight}, federation)
        log_probs = build(experiment, federation).method.predict(state, federation.inputs)
        return metrics["test_accuracy"][-1], -jnp.mean(
            jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
        )

    mapped = jax.jit(jax.vmap(run, in_axes=(None, 0)))
    accuracy, entropy = mapped(jax.random.key(0), jnp.array([0.0, 0.5]))
    assert entropy[1] < 0.8 * entropy[0]
    assert min(accuracy) > 0.3  # chance is 0.1


@pytest.mark.thorough
def test_runs_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run_block("running.md")["metrics"]
    assert metrics["test_accuracy"].shape == (3, 2)  # three learning rates, two evaluations
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("[ 5 10] [")
    assert "% +-" in printed[1]


def test_own_arrays_become_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_block("your_data.md")
    dataset = data.load("npz", path=tmp_path / "wine.npz")
    assert (dataset.num_classes, dataset.input_shape) == (3, (13,))
    federation = data.federate(
        jax.random.key(0),
        dataset,
        test_fraction=0.3,
        supervision="per_client",
        supervision_options={"labels": 3},
    )
    assert federation.summary()["clients"] == 3
    assert federation.summary()["labelled_examples"] == 9


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*hides:fedjax_ssl.errors.ConfigNote")
def test_heads_train_on_an_array_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_block("pretrained.md")
    assert found["probabilities"].shape == (3, 10)
    assert found["summary"]["test_accuracy"] > 0.3


@pytest.mark.thorough
def test_twenty_planned_labels_reach_most_digits(capsys: pytest.CaptureFixture[str]) -> None:
    run_block("plan_labels.md")
    assert float(capsys.readouterr().out) > 0.85


@pytest.mark.thorough
def test_a_graph_step_by_step_gives_scores() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "methods/xclp.md").read_text(), re.DOTALL)
    features = jax.random.normal(jax.random.key(1), (40, 8))
    names = {"fs": fs, "jax": jax, "jnp": jnp, "features": features, "num_classes": 3}
    labels = jnp.where(jnp.arange(40) % 4 == 0, jnp.arange(40) % 3, -1)
    exec(block, {**names, "labels": labels}, names)
    assert names["scores"].shape == (40, 3)


@pytest.mark.thorough
def test_protocols_as_functions_of_arrays() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "secure.md").read_text(), re.DOTALL)
    codes = [np.full((2, 8), client, np.uint32) for client in range(2)]
    shares = [np.full((3, 2), client, np.uint32) for client in range(3)]
    names: dict[str, Any] = {f"codes_{client}": array for client, array in enumerate(codes)}
    names |= {f"share_{client}": array for client, array in enumerate(shares)}
    exec(block, names | {"owner": np.arange(3)}, names)
    assert names["distances"][0, 1].tolist() == [[8, 8], [8, 8]]
    assert names["totals"].tolist() == [[3, 3]] * 3


@pytest.mark.thorough
def test_a_sweep_file_and_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (sweep,) = re.findall(r"```python\n(.*?)```", (DOCS / "sweeps.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(sweep, names)
    assert len(list(names["get_sweep"]())) == 4
    fs.run(fs.load_config("digits_fedavg", {"rounds": 5}), "runs/digits_xclp", quiet=True)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "trained.md").read_text(), re.DOTALL)
    names["images"] = fs.load_dataset("digits").train.x[:5]
    for block in blocks[:2]:
        exec(block, names)
    assert names["probabilities"].shape == (5, 10) and len(names["labels"]) == 5
