"""Epsilon of a run that starts from another one counts what that one has spent, or says that it
does not.
"""

import json

import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.runs.build import round_key
from fedjax_ssl.runs.privacy import Earlier, account_of, earlier_of, privacy_of
from fedjax_ssl.runs.program import static_part

PRIVATE = {"privacy.name": "gaussian", "privacy.accountant": "rdp", "privacy.delta": 0.01}
SPENT = {"epsilon": 2.5, "delta": 0.01, "rounds": 4}


@pytest.fixture
def folder(tmp_path):
    """Makes a run folder of which an account reads no more than this."""

    def make(name: str, privacy: str, summary: dict | None) -> str:
        path = tmp_path / name
        path.mkdir()
        config = {"seed": 0, "method": {"name": "fedavg"}, "privacy": {"name": privacy}}
        (path / "config.json").write_text(json.dumps(config))
        (path / "metrics.jsonl").write_text(json.dumps({"round": 1, "of": name}))
        if summary is not None:
            (path / "summary.json").write_text(json.dumps(summary))
        return str(path)

    return make


def config_of(start: str | None, **settings):
    more = {f"privacy.{name}": value for name, value in settings.items()}
    base = {**PRIVATE, "rounds": 5, "start_from": start}
    return configs.resolve(fs.load_config("digits_fedavg", {**base, **more}))


def test_epsilons_and_deltas_of_a_chain_of_private_runs_add_up(folder) -> None:
    pytest.importorskip("dp_accounting")
    first = config_of(folder("first", "gaussian", SPENT), noise=1.0)
    assert earlier_of(first) == Earlier(2.5, 0.01, 4)
    alone, after = (account_of(one, 11, 10, (5, 5)) for one in (config_of(None, noise=1.0), first))
    assert after.cost(0) == 2.5 and after.cost(5) == pytest.approx(2.5 + alone.cost(5))
    assert after.whole_delta == 0.02
    summary = after.earlier.fields(5)
    assert summary == {"private_rounds": 9, "outside_epsilon": []}
    last = config_of(folder("second", "gaussian", {**SPENT, "rounds": 5, **summary}), noise=1.0)
    assert earlier_of(last).rounds == 9
    keys = {str(jax.random.key_data(round_key(one, jax.random.key(0)))) for one in (first, last)}
    other = config_of(folder("steps", "dp_sgd", {**SPENT, "rounds": 5, **summary}), noise=1.0)
    assert earlier_of(other).rounds == 9  # of the whole chain, whatever kind its last run is of
    assert len(keys) == 2  # with one noise twice, the difference of two models would have none
    assert static_part(first) != static_part(last)  # whose noise may differ


def test_a_budget_is_what_is_left_of_it(folder) -> None:
    pytest.importorskip("dp_accounting")
    start = folder("first", "gaussian", SPENT)
    after = account_of(config_of(start, epsilon=6.0), 11, 10, (5, 5))
    assert 5.9 < after.cost(5) <= 6.0
    with pytest.raises(ConfigError, match=r"epsilon is 2, and config.start_from has spent 2\.5"):
        account_of(config_of(start, epsilon=2.0), 11, 10, (5, 5))


@pytest.mark.parametrize(
    "privacy, summary, says",
    [
        ("none", {"rounds": 4}, "trained without privacy"),
        ("dp_sgd", SPENT, "whose privacy.name=dp_sgd is that of single examples"),
        ("gaussian", {**SPENT, "outside_epsilon": ["open, trained without privacy"]}, "open, trai"),
    ],
)
def test_what_no_epsilon_counts_is_said(folder, privacy, summary, says) -> None:
    pytest.importorskip("dp_accounting")
    config = config_of(folder("first", privacy, summary), noise=1.0)
    account = account_of(config, 11, 10, (5, 5))
    lines = privacy_of(config).in_run(account, 5).lines({})
    (line,) = [one for one in lines if one.startswith("outside this epsilon: config.start_from, ")]
    assert says in line
    if privacy == "gaussian":
        assert account.earlier.epsilon == 2.5
    else:
        assert account.earlier.epsilon == 0


def test_a_start_that_cannot_be_counted_is_refused(folder, tmp_path) -> None:
    for place, says in (
        (folder("first", "gaussian", None), "private run without a summary"),
        (str(tmp_path / "gone"), "is no run folder"),
    ):
        with pytest.raises(ConfigError, match=f"config.start_from: .* {says}"):
            earlier_of(config_of(place, noise=1.0))


def test_a_file_of_weights_says_nothing_of_its_training(tmp_path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"")
    (said,) = earlier_of(config_of(str(file), noise=1.0)).outside
    assert "of whose training a file says nothing" in said
    assert earlier_of(config_of(None, noise=1.0)) == Earlier()


def test_a_private_run_draws_anew_wherever_trained_weights_come_from(folder, tmp_path) -> None:
    # Private rounds may lie behind a run without privacy, and behind a file.
    file = tmp_path / "weights.safetensors"
    starts = [None, folder("open", "none", SPENT), folder("other", "none", SPENT), str(file)]
    keys = []
    for content in (b"first", b"second"):
        file.write_bytes(content)
        configs_of_starts = [config_of(start, noise=1.0) for start in starts]
        keys += [round_key(one, jax.random.key(0)) for one in configs_of_starts]
    drawn = [str(jax.random.key_data(key)) for key in keys]
    assert drawn[:3] == drawn[4:7]
    assert len(set(drawn)) == 5
