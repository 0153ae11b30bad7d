"""`make_train`: the whole experiment as one function of a key."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.federated import BY_CLIENT, to_numbers
from fedjax_ssl.runs.loop import run
from fedjax_ssl.train import make_train, over_seeds


def experiment(method="fedavg", **fields):
    config = presets.digits_by_writer(method, 2)
    config.rounds = 5
    config.eval_every = 2
    config.optimizer.local_epochs = 1
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(3), 3)


@pytest.fixture(scope="module")
def alone():
    return make_train(experiment())


@pytest.fixture(scope="module")
def sweep(keys):
    return over_seeds(make_train(experiment()))(keys)


@pytest.mark.thorough
def test_a_sweep_over_seeds_is_separate_runs(keys, sweep, alone):
    """Programs of other lengths may add in another order: 1e-5 after 5 rounds of float32."""
    states, metrics = sweep
    metrics = to_numbers(metrics)
    for number, key in enumerate(keys):
        state, single = alone(key)
        for name, values in to_numbers(single).items():
            np.testing.assert_allclose(
                values, metrics[name][number], rtol=1e-5, atol=1e-5, err_msg=name
            )
        for one, many in zip(
            jax.tree.leaves(state.params), jax.tree.leaves(states.params), strict=True
        ):
            np.testing.assert_allclose(one, many[number], rtol=1e-4, atol=1e-5)


def test_metrics_have_a_row_per_evaluation(sweep):
    metrics = to_numbers(sweep[1])
    np.testing.assert_array_equal(metrics["round"], [[2, 4, 5]] * 3)
    np.testing.assert_array_equal(metrics["clients"], [[22, 22, 11]] * 3)
    # 11 clients that train, 3 whose examples are the test
    assert metrics.pop(BY_CLIENT).shape == (3, 3, 14)
    assert {values.shape for values in metrics.values()} == {(3, 3)}


@pytest.mark.thorough
def test_the_command_line_gives_the_same_numbers_and_says_how_clients_are_placed(tmp_path, capsys):
    config = experiment(
        "network_pseudo_label", **{"method.warmup_rounds": 2, "rounds": 4, "seed": 5}
    )
    run(config, tmp_path)
    assert capsys.readouterr().out.splitlines().count("clients one after another (CPU)") == 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    metrics = make_train(config)(jax.random.key(5))[1]
    for name in ("round", "test_accuracy", "loss", "pseudo_label_accuracy", "bytes_up"):
        stored = [float("nan") if row[name] == "NaN" else row[name] for row in rows]
        np.testing.assert_array_equal(metrics[name], stored, err_msg=name)
    assert [row["round"] for row in rows] == [2, 4]


@pytest.mark.thorough
def test_rounds_that_call_the_host_are_trained_too(keys):
    real = {"method.num_bits": 64, "method.protocol": "real", "method.warmup_rounds": 1}
    _, metrics = make_train(experiment("xclp", **real, rounds=2, eval_every=1))(keys[0])
    np.testing.assert_array_equal(metrics["round"], [1, 2])


def test_all_arguments_can_be_traced_but_not_the_key_of_a_draw(keys, alone):
    with pytest.raises(configs.ConfigError, match=r"draw it before: jax\.jit\(train\)"):
        jax.jit(alone)(keys[0])
    shapes = jax.eval_shape(alone, keys[0], {}, alone.draw(keys[0]))[1]
    assert shapes["round"].shape == (3,)


def test_an_unknown_hyperparameter_is_an_error(keys):
    with pytest.raises(configs.ConfigError, match=r"optimizer\.lr"):
        make_train(experiment())(keys[0], {"optimizer.lr": 0.1})


def test_a_whole_number_setting_cannot_be_traced(keys):
    train = make_train(experiment("xclp", **{"method.warmup_rounds": 1}))
    with pytest.raises(configs.ConfigError, match=r"method\.num_neighbors"):
        train(keys[0], {"method.num_neighbors": jnp.asarray(3)})


@pytest.mark.thorough
def test_a_private_run_has_epsilon_and_ends_with_its_budget(keys):
    pytest.importorskip("dp_accounting")
    given = {"name": "gaussian", "accountant": "rdp", "delta": 0.01, "noise": 1.5, "epsilon": 3.0}
    train = make_train(
        experiment(
            rounds=6,
            **{f"privacy.{name}": value for name, value in given.items()},
            **{"data.validation_fraction": 0.0, "federated.cohort_size": 8},
        )
    )
    _, metrics = train(keys[0])
    assert metrics["round"].tolist() == [2, 3]
    assert 0 < metrics["epsilon"][0] < metrics["epsilon"][1] <= 3.0
    with pytest.raises(configs.ConfigError, match=r"privacy\.noise is given as a number of"):
        train(keys[0], {"privacy.noise": jnp.asarray(2.0)})
