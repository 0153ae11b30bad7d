"""`fedjax-ssl choose`: methods for the labels of a config or of a user's own data, each as a
command that runs.
"""

from pathlib import Path

from fedjax_ssl import config as configs
from fedjax_ssl.cli import data as data_command
from fedjax_ssl.cli.proposal import (
    Command,
    Proposal,
    composition_for,
    labels_in,
    methods_for,
    rehearse,
)
from fedjax_ssl.cli.run import parse
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.shipped import shipped_configs

USAGE = "usage: fedjax-ssl choose CONFIG | PATH [--FIELD=VALUE ...]"
HELP = f"""{USAGE}

Says which labels your data have, and lists methods that learn from them, the best one first.
Each comes as a command that runs with the method's default settings.

  CONFIG            a shipped config, or a file of your own, as for `run`
  PATH              your own folder of images, table or .npz, as for `data check PATH`
  --FIELD=VALUE     a setting, as for `run`"""
_COUNTS = (
    "clients",
    "labelled_clients",
    "clients_with_coarse_labels",
    "clients_with_sets",
    "train_examples",
    "labelled_examples",
    "server_examples",
)


def main(arguments: list[str]) -> int:
    """Print methods for the labels in the data.

    Returns:
        0; 2 if nothing can be learned from them.

    Raises:
        ConfigError: a setting cannot be used.
    """
    asked = parse(arguments)
    if asked.help is not None:
        print(HELP)
        return 0
    if asked.name is None:
        raise ConfigError(f"the config's name, or the path of your data, is missing\n{USAGE}")
    path = Path(asked.name).expanduser()
    shipped = asked.name.partition(":")[0] in shipped_configs()
    if path.suffix != ".py" and not shipped and path.exists():
        return data_command.main(["check", *arguments])
    config = configs.load(asked.name, asked.settings)
    shared = Shared()
    built = shared.build(configs.resolve(config))
    summary = built.federation.summary()
    counts = [
        f"{summary[name]:,} {name.replace('_', ' ')}" for name in _COUNTS if summary.get(name)
    ]
    print(f"{asked.name}: {', '.join(counts)}")
    labels = labels_in(built.federation)
    proposals = methods_for(labels)
    composition = composition_for(labels, config.rounds)
    if composition is not None:
        proposals.insert(1, composition)
    found = [
        command
        for command in (_command(proposal, asked.name, asked.settings) for proposal in proposals)
        if not rehearse(command, shared, traced=False)
    ]
    run_name = configs.find(asked.name).run_name
    for command in found:
        method = command.proposal.method
        print(f"\n{method}: {command.proposal.why}")
        print(f"  {command.line(f'runs/{run_name}_{method}')}")
    if not found:
        print("\nno method learns from these labels; give clients or the server some")
        return 2
    own = config.method.name
    if own not in {command.proposal.method for command in found}:
        print(f"\n{own}: the method of this config")
    print(
        f"\n{counted(len(found), 'suggestion')}; all: `fedjax-ssl list methods`, and "
        "`fedjax-ssl list terms` for compositions"
    )
    return 0


def _command(proposal: Proposal, config: str, settings: list[tuple[str, str]]) -> Command:
    given = {field.removeprefix("config."): value for field, value in settings}
    kept = {field: value for field, value in given.items() if not field.startswith("method.")}
    return Command(proposal, config, {**kept, "method.name": proposal.method, **proposal.settings})
