"""Settings that no memory holds are one message, before anything is compiled."""

from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.sizes import check_bytes, counting, sizes_of


def test_what_no_memory_holds_names_the_large_settings() -> None:
    check_bytes(1000, "a round", {"optimizer.batch_size": 10**9})
    with pytest.raises(configs.ConfigError, match=r"^config.optimizer.batch_size is 10{9}: a round .*; lower it$"):
        check_bytes(10**15, "a round", {"optimizer.batch_size": 10**9})
    with pytest.raises(configs.ConfigError, match=r"^a round would need 1e.03 TB.*; lower the sizes of the model"):
        check_bytes(10**15, "a round", {})
    with pytest.raises(configs.ConfigError, match=r"method.set_size is 5000: a round .*; lower one of them$"):
        check_bytes(10**15, "a round", {"optimizer.batch_size": 10**9, "method.set_size": 5000})


def test_a_count_beyond_indices() -> None:
    counted = pytest.raises(configs.ConfigError, match=r"^config.method.num_neighbors is 10{9}: .*than can be counted")
    with counted, counting({"method.num_neighbors": 10**9}):
        raise OverflowError
    with pytest.raises(OverflowError), counting({}):
        raise OverflowError


def test_the_large_numbers_of_a_config() -> None:
    settings = [("optimizer.batch_size", 10**9), ("model.hidden", (5, 4000)), ("seed", 10**6), ("rounds", 10**6)]
    found = sizes_of(configs.resolve(configs.load("digits_fedavg", settings)))
    assert found == {"optimizer.batch_size": 10**9, "model.hidden": 4000}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # notes of the same settings, and JAX's of an index beyond 32 bits
@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("digits_fedavg", "optimizer.batch_size", 10**9),
        ("digits_fedavg", "optimizer.local_epochs", 10**9),
        ("digits_fedavg", "model.hidden", (10**6, 10**6)),
        ("digits_xclp", "method.num_neighbors", 10**9),
        ("digits_protofssl", "method.num_query", 10**9),
    ],
)
def test_a_run_refuses_sizes_that_do_not_fit(tmp_path: Path, name: str, field: str, value: object) -> None:
    config = configs.load(name, [(field, value), ("rounds", 2), ("eval_every", 1)])
    if "warmup_rounds" in config.method:
        config.method.warmup_rounds = 1
    with pytest.raises(configs.ConfigError, match=f"config.{field} "):
        run(config, tmp_path / "run")
