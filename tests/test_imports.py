"""What a recipe loads of this package: engine, objectives and the interface of networks, and
nothing else.
"""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
{imports}
print(json.dumps([module for module in sys.modules if module.split(".")[0] == "fedjax_ssl"]))
"""


def loaded(*names: str) -> set[str]:
    """Modules of the package after the import of recipes in a fresh process."""
    script = SCRIPT.format(imports="\n".join(f"import fedjax_ssl.methods.{name}" for name in names))
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(found.stdout))


def test_federated_averaging_loads_fewer_than_forty_modules() -> None:
    modules = loaded("fedavg") - {"fedjax_ssl.contrib"}  # a table of names
    assert not any(module.startswith("fedjax_ssl.contrib") for module in modules)
    assert len(modules) < 40, f"{len(modules)}: {', '.join(sorted(modules))}"


def test_a_recipe_loads_no_sources_protocols_or_faces() -> None:
    modules = loaded("xclp", "fedmatch")
    rooms = {module.split(".")[1] for module in modules if "." in module}
    assert "graph" in rooms
    assert not rooms & {
        "secure",
        "config",
        "presets",
        "runs",
        "sweep",
        "report",
        "trained",
        "cli",
    }
    assert not any(module.startswith("fedjax_ssl.data.sources") for module in modules)


def test_a_run_starts_without_libraries_that_most_runs_never_use() -> None:
    script = (
        "import sys, fedjax_ssl.cli.run; from fedjax_ssl import config;"
        "config.resolve(config.load('digits_fedavg'));"
        "print(sys.modules.keys() & {'scipy.optimize', 'scipy.stats', 'pandas', 'matplotlib'})"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "set()\n"
