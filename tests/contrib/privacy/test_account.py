"""Epsilon and noise: equal to dp-accounting's own, as its version 0.6.0 gave them for the settings
of FEMNIST, (FL)2 and SAGE.
"""

import math

import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.contrib.privacy import _account as accounts
from fedjax_ssl.contrib.privacy._account import Account, Sampled, solved
from fedjax_ssl.contrib.privacy.dp_sgd import mechanisms
from fedjax_ssl.contrib.privacy.gaussian import Gaussian, noise_beside_a_count
from fedjax_ssl.runs.privacy import account_of

dp_accounting = pytest.importorskip("dp_accounting")
slow = pytest.mark.thorough

MILLION = (10**6, 1000, 1000, 1e-8)
FEMNIST = (3597, 100, 500, 1e-5)
FL2 = (100, 10, 800, 1e-3)
SAGE = (20, 8, 300, 1e-2)


def account(setting, accountant: str, noise: float = 1.0, slots: int | None = None) -> Account:
    clients, expected, _, delta = setting
    return Account(Sampled(clients, expected, slots or clients), delta, accountant, noise)


@pytest.mark.parametrize(
    "setting, accountant, slots, epsilon",
    [
        (SAGE, "pld", None, 46.7799),
        (SAGE, "rdp", None, 72.2649),
        pytest.param(MILLION, "pld", None, 0.3051, marks=slow),
        pytest.param(FEMNIST, "pld", None, 3.9534, marks=slow),
        pytest.param(FL2, "pld", None, 16.9533, marks=slow),
        pytest.param(FL2, "pld", 16, 22.4894, marks=slow),
        pytest.param(FEMNIST, "pld", 128, 5.9081, marks=slow),
    ],
)
def test_epsilon_is_that_of_dp_accounting(setting, accountant, slots, epsilon) -> None:
    assert account(setting, accountant, slots=slots).cost(setting[2]) == pytest.approx(
        epsilon, abs=6e-5
    )


@pytest.mark.parametrize(
    "setting, epsilon, noise",
    [
        (SAGE, 8.0, 2.8935),
        pytest.param(SAGE, 2.0, 7.7759, marks=slow),
        pytest.param(MILLION, 8.0, 0.4547, marks=slow),
        pytest.param(FEMNIST, 2.0, 1.4839, marks=slow),
        pytest.param(FL2, 8.0, 1.5272, marks=slow),
    ],
)
def test_noise_is_solved_for_and_stays_within_the_budget(setting, epsilon, noise) -> None:
    found = solved(account(setting, "pld", math.nan), epsilon, setting[2])
    assert noise * 0.9999 < found < noise * 1.003
    assert account(setting, "pld", found).cost(setting[2]) <= epsilon


def test_sum_and_count_together_cost_what_the_sum_would() -> None:
    whole = dp_accounting.pld.PLDAccountant()
    for noise in (noise_beside_a_count(1.0, 5.0), 10.0):
        whole.compose(dp_accounting.GaussianDpEvent(noise))
    one = Account(Sampled(1, 1, 1), 1e-5, "pld", 1.0)
    assert whole.get_epsilon(1e-5) == pytest.approx(4.3771781, abs=2e-5)
    assert one.cost(1) == pytest.approx(4.3771781, abs=2e-5)


@slow
def test_rounds_of_a_budget_are_the_most_it_pays() -> None:
    of_sage = account(SAGE, "rdp", noise=3.0)
    rounds = of_sage.rounds_within(4.0, 300)
    assert of_sage.cost(rounds) <= 4.0 < of_sage.cost(rounds + 1)
    assert of_sage.rounds_within(100.0, 300) == 300
    assert of_sage.rounds_within(1e-3, 300) == 0


def config_of(**settings):
    given = {"privacy.name": "gaussian", "privacy.accountant": "rdp", "rounds": 5}
    more = {f"privacy.{name}": value for name, value in settings.items()}
    return configs.resolve(fs.load_config("digits_fedavg", {**given, **more}))


@pytest.mark.parametrize(
    "settings, says",
    [
        ({}, "neither noise nor epsilon is given"),
        ({"noise": 0.0}, "noise is 0, whose epsilon is infinite"),
        ({"noise": 1e-9}, "noise is 1e-09, whose epsilon is beyond counting; give at least 0.001"),
        ({"noise": 1.0, "delta": 0.1}, "delta is 0.1 for 11 clients: with 1/11 and more"),
        (
            {"epsilon": 1e-3, "delta": 1e-9},
            "no noise up to 100000 reaches epsilon 0.001 in 5 rounds",
        ),
        (
            {"noise": 1.2, "quantile": 0.5},
            "quantile is given, and noise 1.2 is not below 1, twice count_noise: .* above 0.6",
        ),
    ],
)
def test_an_account_that_says_nothing_is_refused(settings, says) -> None:
    with pytest.raises(ConfigError, match=f"config.privacy: {says}"):
        account_of(config_of(**settings), 11, 10, (5, 5))


def test_little_noise_has_an_epsilon_without_an_account_that_fills_the_memory() -> None:
    """That of a Gaussian mechanism with noise z / sqrt(rounds), whose losses have the mean and
    variance r/(2 z^2) and r/z^2: by the normal quantile of delta where they are large.
    """
    noise, rounds = 0.01, 100
    found = account((10, 10, 0, 1e-3), "pld", noise).cost(rounds)
    ratio = rounds**0.5 / noise
    assert found == pytest.approx(ratio**2 / 2 + 3.0902 * ratio, rel=2e-3)


def test_private_steps_cost_what_the_client_pays_whose_examples_are_drawn_most() -> None:
    """The hospitals, 100 steps of 4 patients a round; and epochs, where more examples may be more
    steps with a probability that is hardly smaller.
    """
    steps = mechanisms(batch_size=4, epochs=1, steps=100, sizes=(30, 199))
    assert steps == ((Sampled(30, 4, 14), 100),)
    smallest = Account(Sampled(4, 4, 4), 1e-3, "pld", 2.6, steps)
    event = dp_accounting.TruncatedSubsampledGaussianDpEvent(30, 4 / 30, 14, 2.6)
    whole = dp_accounting.pld.PLDAccountant()
    whole.compose(dp_accounting.SelfComposedDpEvent(event, 200))
    assert smallest.cost(2) == pytest.approx(whole.get_epsilon(1e-3), rel=1e-3)
    of_epochs = mechanisms(batch_size=4, epochs=2, steps=None, sizes=(4, 5))
    by_size = [Account(Sampled(4, 4, 4), 0.1, "pld", 2.6, (one,)).cost(3) for one in of_epochs]
    assert by_size[0] < by_size[1] == Account(Sampled(4, 4, 4), 0.1, "pld", 2.6, of_epochs).cost(3)


def test_what_is_missing_is_said_with_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    accounts._loss_of_a_round.cache_clear()
    with pytest.raises(ConfigError, match=r"config.privacy needs dp-accounting: pip install"):
        account(SAGE, "pld", noise=1.234).cost(1)


def test_delta_is_below_one_over_the_clients() -> None:
    found = account_of(config_of(noise=1.0), 11, 10, (5, 5))
    assert found is not None
    assert found.delta == pytest.approx(11**-1.1)
    assert Gaussian(noise=1.0).delta is None
