"""All methods of a table take as many local steps a round at the scales small and medium, or
their cells say why not.
"""

import importlib
from typing import Any

import jax
import numpy as np
import pytest

from experiments.papers.marks import other_steps
from experiments.papers.scales import Run, runs_of, use_stand_in
from experiments.papers.table import load_tables
from fedjax_ssl import config as configs
from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method, Recipe, Setup
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.federated.contract import Now

build = importlib.import_module("fedjax_ssl.runs.build")
TABLES = load_tables()
COUNTED = [
    (name, scale)
    for name, table in TABLES.items()
    for scale in ("small", "medium")
    if isinstance(table.steps, int) and scale in table.scales
]


def recipe_of(experiment: Any, federation: FederatedData) -> Recipe:
    """The method of a config before it is closed."""
    found = []

    def note(
        name: str,
        setup: Setup,
        around: Any = (),
        facts: Any = None,
        personalize: Any = None,
        train: str = "all",
        protect: Any = None,
        **settings: Any,
    ) -> Method:
        found.append(methods.recipe(name, setup, **settings))
        return federated.build(found[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build.methods, "build", note)
        build.build(experiment, federation)
    return found[0]


def steps_of(run: Run) -> float:
    """Mean local steps of the clients that take any, in a round of the last stage."""
    config = run.config
    local = config.optimizer
    if config.method.name == "protofssl":  # episodes, whatever was sent
        return local.local_epochs
    with config.unlocked():
        use_stand_in(config)
    experiment = build.load_resolved(configs.resolve(config))
    federation = build.federate(experiment, jax.random.key(0))
    stage = recipe_of(experiment, federation).stages[-1]
    if local.local_steps:  # and the method takes them, or it would not have been built
        return local.local_steps
    key = jax.random.key(0)
    now = Now(np.int32(0))
    count = jax.jit(
        jax.vmap(lambda client: stage.clients.sampler.schedule(key, client, now).num_steps)
    )
    taken = np.asarray(count(all_clients(federation)))
    return float(taken[taken > 0].mean())


def check(name: str, scale: str, columns: int | None) -> None:
    table = TABLES[name]
    cells = table.make_cells(scale)
    chosen = [*dict.fromkeys(cell.column for cell in cells)][:columns]
    cells = [cell for cell in cells if cell.column in chosen and not cell.steps]
    for run in runs_of(table, scale, cells, seeds=[0]):
        assert not other_steps(table, scale, steps_of(run)), run.name


@pytest.mark.thorough
@pytest.mark.promise
@pytest.mark.filterwarnings("ignore::fedjax_ssl.errors.ConfigNote")
def test_methods_with_labels_at_clients_take_as_many_steps():
    check("fedmatch-table1", "small", 1)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.errors.ConfigNote")
@pytest.mark.parametrize(("name", "scale"), COUNTED)
def test_methods_take_as_many_steps(name, scale):
    check(name, scale, None)


def test_tables_of_several_methods_say_how_many_steps():
    for name, table in TABLES.items():
        cells = table.make_cells("small")
        found = {cell.settings.get("method.name", "") for cell in cells}
        if len(found) > 1:
            assert table.steps, f"{name} has {', '.join(sorted(found))}"
