"""Fed-Heart-Disease as its config trains it, against a plain loop in NumPy; the rows of its
table.
"""

import fed_heart_disease as experiment
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.federated import Kept, Now, all_clients, labelled_epochs
from fedjax_ssl.federated.sampler import LOCAL_STEPS
from fedjax_ssl.runs.build import build, federate, load_experiment
from tests.data.sources.test_fed_heart_disease import folder  # noqa: F401

KEY = jax.random.key(5)
STEPS = 5
ROUNDS = 3
BATCH = 4


@pytest.mark.thorough
@pytest.mark.promise
def test_fedavg_with_local_steps_is_a_plain_loop(folder):  # noqa: F811
    settings = {
        "data.path": str(folder),
        "rounds": ROUNDS,
        "eval_every": ROUNDS,
        "optimizer.local_steps": STEPS,
    }
    config = fs.load_config("fed_heart_disease", {**settings, "optimizer.learning_rate": 0.1})
    state, _ = fs.make_train(config)(KEY)

    loaded = load_experiment(config)
    data = federate(loaded, KEY)
    start = build(loaded, data).method.init(KEY, data).params["model"]
    weights = np.append(np.asarray(start["kernel"], np.float64)[:, 0], start["bias"])
    inputs = np.column_stack([np.asarray(data.inputs, np.float64), np.ones(len(data.inputs))])
    draw = jax.jit(labelled_epochs(BATCH, 1, data.max_labelled).going_on(STEPS).schedule)
    sizes = np.asarray(data.num_labelled)
    for number in range(ROUNDS):
        changes = []
        for one in range(4):
            client = jax.tree.map(lambda leaf, at=one: leaf[at], all_clients(data))
            client = client._replace(
                kept=Kept({}, {}, {LOCAL_STEPS: jnp.int32(number * STEPS)}, ())
            )
            batches = draw(KEY, client, Now(jnp.int32(number), run_key=KEY))
            local = weights.copy()
            for places, mask in zip(
                batches.positions["labelled"], batches.masks["labelled"], strict=True
            ):
                rows = np.asarray(data.index)[one, places[mask]]
                error = 1 / (1 + np.exp(-inputs[rows] @ local)) - np.asarray(data.labels)[rows]
                local -= 0.1 * inputs[rows].T @ error / len(rows)
            changes.append(local - weights)
        weights = weights + np.average(changes, axis=0, weights=sizes)
    found = np.append(
        np.asarray(state.params["model"]["kernel"])[:, 0], state.params["model"]["bias"]
    )
    np.testing.assert_allclose(found, weights, atol=1e-5)


def test_every_strategy_is_a_config_and_has_published_numbers(folder):  # noqa: F811
    rows = {name for name in experiment.PUBLISHED if not name.endswith(" alone")} | {"alone"}
    assert rows == set(experiment.STRATEGIES)
    for settings in experiment.STRATEGIES.values():
        load_experiment(fs.load_config("fed_heart_disease", {"data.path": str(folder), **settings}))
    *own, (x, y) = experiment.test_sets(str(folder))
    assert len(own) == 4
    assert sum(len(labels) for _, labels in own) == len(x) == len(y)
    np.testing.assert_allclose(np.concatenate([labels for _, labels in own]), y)


@pytest.mark.thorough
def test_cells_of_few_labels_are_configs(folder):  # noqa: F811
    for method in (*experiment.FEW_LABELS.values(), None):
        for labels, count in (("2", 2), ("all", None), ("2, VA none", 2)):
            config = experiment.few_labels_config(str(folder), method, labels, count)
            loaded = load_experiment(config)
            if method not in ("xclp", "fedul"):  # the others' federations are as these
                continue
            data = federate(loaded, jax.random.key(0))
            last = int(data.num_labelled[3])
            assert last == 0 if "none" in labels or method == "fedul" else last > 0
    config = experiment.few_labels_config(str(folder), None, "2", 2)
    assert 0 <= experiment.one_shot(config) <= 1
