"""The names of `import fedjax_ssl as fs`: which there are, what importing them costs, and that
their examples run.
"""

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import checks, errors, registry

ROOT = Path(__file__).parents[1]
NAMES = """
    __version__ load_config run load_run report make_train over_seeds train load_dataset federate Dataset FederatedData
    propagate_labels plan_labels graph objectives Method Recipe build compose Setup Term View Stage Training Sampler register methods models from_linen from_nnx
"""


def test_the_front_door_offers_these_names() -> None:
    assert fs.__all__ == NAMES.split() and {*fs.__all__, "data", "federated"} < {*dir(fs)}
    assert fs.data.Dataset is fs.Dataset and fs.config.default().rounds and "errors" not in dir(fs)
    with pytest.raises(
        AttributeError, match="has no attribute 'runn'; it offers: load_config, run,"
    ):
        fs.runn  # noqa: B018


def test_importing_the_package_brings_nothing_else() -> None:
    code = "import sys, fedjax_ssl; print({*sys.modules} - {'__main__'})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {name.partition(".")[0] for name in eval(done.stdout)} - sys.stdlib_module_names == {
        "fedjax_ssl"
    }


@pytest.mark.thorough
@pytest.mark.promise
@pytest.mark.parametrize("name", NAMES.split()[1:])
def test_the_example_in_the_docstring_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for table in ("_builders", "_lines", "_options"):  # examples register methods
        monkeypatch.setattr(fs.methods.METHODS, table, dict(getattr(fs.methods.METHODS, table)))
    names = {"fs": fs, "jax": jax, "jnp": jnp, "np": np}
    example = doctest.DocTestParser().get_doctest(
        getattr(fs, name).__doc__ or "", names, name, None, None
    )
    assert example.examples, f"fs.{name} has no example"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@pytest.mark.parametrize("module", [checks, errors, registry], ids=lambda module: module.__name__)
def test_examples_of_declarations_run(module) -> None:
    tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried.attempted and not tried.failed


@pytest.mark.parametrize("start", [fs.make_train, lambda name: fs.run(name, "never")])
def test_a_name_in_place_of_a_config_is_one_message(start) -> None:
    with pytest.raises(errors.ConfigError, match=r"load_config\(NAME\) reads one by its name"):
        start("digits_fedavg")


@pytest.mark.parametrize(
    "name", [one for one in fs.__all__ if inspect.isfunction(getattr(fs, one))]
)
def test_none_for_what_is_needed_is_one_message(name: str) -> None:
    function = getattr(fs, name)
    parameters = inspect.signature(function).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind != 4]
    for none in needed[:1] if name in {"register", "from_linen", "from_nnx"} else needed:
        with pytest.raises(ValueError, match=r"None|a config is needed|load_config\(NAME\)"):
            function(**{one: None if one == none else object() for one in needed})


def test_a_recipe_in_place_of_its_name_is_one_message() -> None:
    with pytest.raises(AttributeError, match=r"methods.build\('per_client_lp', setup\)"):
        _ = fs.methods.per_client_lp
