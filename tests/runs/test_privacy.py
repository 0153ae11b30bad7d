"""A private run: epsilon in its rows, the budget that ends it, what is said, going on with it."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl import runs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.progress import no_protection
from fedjax_ssl.folder.run_folder import ConfigMismatch

PRIVATE = {"privacy.name": "gaussian", "privacy.accountant": "rdp", "privacy.delta": 0.01}
SMALL = {
    "rounds": 6,
    "eval_every": 2,
    "data.validation_fraction": 0.0,
    "model.hidden": (8,),
    "federated.cohort_size": 8,
}
ADAPTIVE = {"privacy.quantile": 0.5, "privacy.count_noise": 2.0, "privacy.clip": 0.1}


def config_of(**settings: Any):
    return fs.load_config("digits_fedavg", {**SMALL, **PRIVATE, **settings})


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"federated.weighting": "examples"}, "weighting=examples makes weights of"),
        ({"cohort.name": "by_size"}, "cohort.name=by_size draws cohorts"),
        ({"loss.class_weights": ("inverse",)}, "count the labels of all clients"),
        ({"data.standardize": "train"}, "a mean and a deviation of all clients' examples"),
        ({"federated.name": "feddyn"}, "the mean number of examples of all clients"),
        ({"save_clients": "last"}, "save_clients keeps models of single clients"),
        (
            {"supervision.name": "planned", "supervision.labels": 20},
            "supervision.name=planned makes its plan of something of every example",
        ),
        (
            {"prediction.predictors": "per_client_lp,class_means"},
            "predictors names class_means, for which clients send something of every example",
        ),
        ({"privacy.delta": 1.5}, r"config.privacy.delta is 1.5; it must be a number in \(0, 1\)"),
    ],
)
def test_what_would_be_known_beside_the_sums_is_refused(settings, says) -> None:
    with pytest.raises(ConfigError, match=says):
        configs.resolve(config_of(**settings))


def test_class_shares_of_all_clients_are_refused_where_sets_are_divided_by_them() -> None:
    def resolve(**settings: Any) -> None:
        private = {**PRIVATE, "privacy.noise": 1.0}
        configs.resolve(fs.load_config("digits_fedul:10,iid,fedul", {**private, **settings}))

    for given in ({}, {"supervision.test_prior": "sets"}):
        with pytest.raises(ConfigError, match=r"those of all clients' .*test_prior=uniform"):
            resolve(**given)
    resolve(**{"supervision.test_prior": "uniform"})
    resolve(**{"method.use_test_prior": False})


ROWS = [f"{40 + row % 7},{'ab'[row % 2]},{row % 2},c{row % 4}" for row in range(16)]


@pytest.mark.parametrize(
    "row, settings, says",
    [
        (
            "60,a,1,c1",
            {},
            r"words of drug, which are those of all clients' rows .* data.ignore=drug",
        ),
        (",a,1,c1", {"data.ignore": ("drug",), "data.missing": "median"}, "medians of columns"),
        ("60,a,1,c1", {"data.ignore": ("drug",)}, ""),
        (",a,1,c1", {"data.ignore": ("drug",), "data.missing": "drop"}, ""),
    ],
)
@pytest.mark.parametrize("privacy", ["gaussian", "dp_sgd"])
def test_what_a_table_has_of_all_rows_is_refused(privacy, row, settings, says, tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["age,drug,label,client", *ROWS, row]))
    fixed = {"privacy.name": privacy, "privacy.noise": 1.0, "data.standardize": "none"}
    root = {"data.path": str(path), "data.root": str(tmp_path / "root")}
    config = fs.load_config("table", {**fixed, **root, "model.name": "linear", **settings})
    if says:
        with pytest.raises(ConfigError, match=f"config.privacy.name is set, but .*{says}"):
            runs.load_experiment(config)
        return
    reading = runs.load_experiment(config).dataset.reading
    assert [one.fill for one in reading.features] == [0.0]


def test_a_dataset_that_a_run_without_privacy_loaded_is_looked_at_again(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["age,drug,label,client", *ROWS]))
    given = {"data.path": str(path), "data.root": str(tmp_path / "root"), "model.name": "linear"}
    given |= {"data.standardize": "none", "optimizer.batch_size": 2}
    open_one, private = (
        configs.resolve(fs.load_config("table", {**given, **more}))
        for more in ({}, {"privacy.name": "gaussian", "privacy.noise": 1.0})
    )
    shared = runs.Shared()
    shared.experiment(open_one)
    with pytest.raises(ConfigError, match="words of drug, which are those of all clients' rows"):
        shared.experiment(private)


def test_images_have_the_mean_brightness_of_all_clients_and_are_refused() -> None:
    settings = {"privacy.noise": 1.0, "data.standardize": "client"}
    with pytest.raises(ConfigError, match="brings to the mean brightness of all clients"):
        runs.load_experiment(config_of(**settings))


def test_means_over_a_clients_examples_are_refused_beside_private_steps() -> None:
    steps = {"privacy.name": "dp_sgd", "privacy.noise": 1.0, "data.standardize": "client"}
    with pytest.raises(ConfigError, match="standardize=client has a mean and a deviation of all"):
        configs.resolve(fs.load_config("digits_fedavg", {**SMALL, **steps}))


@pytest.mark.thorough
def test_private_steps_cost_by_round_and_end_with_their_budget(tmp_path) -> None:
    pytest.importorskip("dp_accounting")
    steps = {"privacy.name": "dp_sgd", "privacy.noise": 2.0, "privacy.epsilon": 6.0}
    config = fs.load_config("digits_fedavg:all", {**SMALL, **steps, "rounds": 20})
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        summary = fs.run(config, tmp_path)
    assert 0 < summary["epsilon"] <= 6.0 and summary["budget_spent"]
    text = " ".join(said.getvalue().split())
    for part in (
        "privacy of one example more or less at a client, also from the server: epsilon",
        "noise 2 times the clip norm of a gradient",
        "outside this epsilon: how many examples a client has, scores",
        "the budget epsilon=6 is spent after round",
    ):
        assert part in text, part


def test_settings_without_a_mechanism_are_said_to_do_nothing() -> None:
    with pytest.warns(configs.ConfigNote, match=r"config.privacy.noise=1.0 has no effect"):
        configs.resolve(fs.load_config("digits_fedavg", {"privacy.noise": 1.0}))


@pytest.fixture(scope="module")
def spent(tmp_path_factory) -> tuple[Path, dict[str, Any], str]:
    """A run whose budget pays three of its six rounds."""
    pytest.importorskip("dp_accounting")
    folder = tmp_path_factory.mktemp("private") / "run"
    budget = {"privacy.noise": 1.5, "privacy.epsilon": 3.0, **ADAPTIVE}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        summary = fs.run(config_of(**budget), folder)
    return folder, summary, said.getvalue()


def test_a_budget_ends_a_run_and_epsilon_is_in_every_row(spent) -> None:
    folder, summary, _ = spent
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [2, 3]
    assert rows[0]["epsilon"] < rows[1]["epsilon"] == summary["epsilon"] <= 3.0
    assert rows[0]["clip_norm"] != rows[1]["clip_norm"] > 0
    assert summary["budget_spent"] and summary["stopped_early"] and summary["delta"] == 0.01
    assert summary["noise"] == 1.5


def test_a_run_says_what_is_protected_and_what_is_not(spent) -> None:
    said = " ".join(spent[2].split())
    for part in (
        "privacy of one client more or less: epsilon 2.",
        "at delta 0.01 after 3 rounds, noise 1.5 times the clip norm",
        "each of 11 clients drawn with probability 0.7273, at most 11 in a round (rdp)",
        "outside this epsilon: scores, losses and counts in metrics.csv",
        "the budget epsilon=3 is spent after round 3 of 6: the run ends there",
        "round 2/3, accuracy",
        "epsilon 2.",
        "after round 3, which spends the budget of privacy",
        "is no protection, as delta 0.01 is above 0.001: with this probability all data of a client",
    ):
        assert part in said, part
    # beside every epsilon that is printed: at the start, after two evaluations, at the end
    assert said.count("no protection, as delta 0.01 is above 0.001") == 4
    assert no_protection(0.0011) and not no_protection(0.001)


def test_a_run_that_is_complete_stays_complete(spent, capsys) -> None:
    folder, summary, _ = spent
    budget = {"privacy.noise": 1.5, "privacy.epsilon": 3.0, **ADAPTIVE}
    assert fs.run(config_of(**budget), folder, quiet=True) == summary
    # what weakens epsilon is said where no report is printed, too
    assert "is no protection, as delta 0.01 is above 0.001" in capsys.readouterr().err


@pytest.mark.thorough
def test_solved_noise_is_for_the_rounds_of_its_run(spent, tmp_path) -> None:
    solved = {"privacy.epsilon": 8.0, "rounds": 2}
    fs.run(config_of(**solved), tmp_path, quiet=True)
    with pytest.raises(ConfigMismatch, match=r"config\.privacy\.noise=None"):
        fs.run(config_of(**{**solved, "rounds": 4}), tmp_path, quiet=True)


def test_a_budget_below_one_round_is_refused(spent, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"but one round with noise 0\.5 costs"):
        fs.run(config_of(**{"privacy.noise": 0.5, "privacy.epsilon": 0.1}), tmp_path, quiet=True)


@pytest.mark.thorough
def test_an_adaptive_norm_finds_its_quantile() -> None:
    """All 100 clients of the digits, 50 rounds; then a round without noise counts them."""
    numbers = {"privacy.noise": 1.0, "privacy.count_noise": 2.5, "privacy.quantile": 0.5}
    found = {"privacy.noise": 1e-3, "privacy.count_noise": 1e-3, "privacy.quantile": 0.5}
    whole = {"rounds": 50, "federated.cohort_size": 100, "privacy.slots": 100}
    methods = []
    for given in (numbers, found):
        config = fs.load_config("digits_private:noise", {**whole, **given})
        experiment = runs.load_experiment(config)
        federation = runs.federate(experiment, jax.random.key(0))
        methods.append(runs.build(experiment, federation).method)
    key = jax.random.key(1)
    adapting, counting = (jax.jit(method.round) for method in methods)
    state = methods[0].init(key, federation)
    for _ in range(50):
        state, _ = adapting(key, state, federation)
    after, _ = counting(key, state, federation)
    moved = float(after.uploads[-1].norm / state.uploads[-1].norm)
    share = 0.5 - math.log(moved) / 0.2
    assert abs(share - 0.5) < 0.05
