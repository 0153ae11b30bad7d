"""Settings that no memory holds are one message, before anything is compiled."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.sizes import check_program, check_state, counting, sizes_of


def program(batch: int, features: int = 64, width: int = 128):
    inputs, weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((batch, features), (features, width)))
    return jax.make_jaxpr(jax.jit(lambda x, w: (x @ w).sum()))(inputs, weights)


def test_a_product_that_no_memory_holds_names_the_field_that_makes_it() -> None:
    sizes = {"optimizer.batch_size": 10**9, "method.set_size": 5000}
    check_program(program(10), sizes)
    with pytest.raises(configs.ConfigError) as caught:
        check_program(program(10**9), sizes)
    assert str(caught.value).startswith(
        "config.optimizer.batch_size is 1000000000: a round would need an array of 512 GB, float32[1,000,000,000, 128],"
        " and the memory has "
    )
    assert str(caught.value).endswith("; lower it")
    with pytest.raises(configs.ConfigError, match=r"^a round would need .*; lower the sizes of the model"):
        check_program(program(10**9), {})
    with pytest.raises(configs.ConfigError, match=r"^config.optimizer.batch_size .*\[1,000,000,007, 128\]"):
        check_program(program(10**9 + 7), sizes)


def test_what_the_compiler_fuses_does_not_count() -> None:
    large = jax.make_jaxpr(lambda x: (x[:, None] + x[None, :]).sum())(jax.ShapeDtypeStruct((10**6,), jnp.float32))
    check_program(large, {})


def test_a_state_and_a_count_beyond_indices() -> None:
    state = {"w": jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32)}
    with pytest.raises(configs.ConfigError, match=r"^config.model.hidden is 1000000: the state .* an array of 4 TB"):
        check_state(state, {"model.hidden": 10**6})
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
