"""`fedjax-ssl new`: a folder to start a study from."""

import keyword
import sys
from importlib import resources
from pathlib import Path

from fedjax_ssl.cli import PROGRAM, parser
from fedjax_ssl.shipped import docs

# Folder of the template, and the word in it that stands for the study's name.
TEMPLATE = "my_study"


def main(arguments: list[str]) -> int:
    """Write the folder.

    Returns:
        0; 2 if the name is not allowed or already exists.
    """
    own = parser(
        "new",
        "Writes a folder with a config, a method of your own and a test, to start a study from.",
    )
    own.add_argument(
        "folder", metavar="FOLDER", help="its name is the study's: letters, digits, underscores"
    )
    folder = Path(own.parse_args(arguments).folder)
    name = folder.name
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        own.error(
            f"{name!r} cannot be the name of a module of your own; use letters, digits and "
            "underscores"
        )
    if folder.exists():
        own.error(f"{folder} is there already; give another name")
    folder.mkdir(parents=True)
    files = [
        file
        for file in resources.files(f"{__package__}.{TEMPLATE}").iterdir()
        if TEMPLATE in file.name
    ]
    for file in sorted(files, key=lambda file: file.name):
        text = file.read_text(encoding="utf-8").replace(TEMPLATE, name)
        (folder / file.name.replace(TEMPLATE, name)).write_text(text, encoding="utf-8")
    config = folder / f"{name}.py"
    print(
        f"{config}    the study: data, network, settings\n"
        f"{folder / f'{name}_method.py'}    a method of your own\n"
        f"{folder / f'test_{name}.py'}    a test of both\n\n"
        f"Next:\n"
        f"  {PROGRAM} run {config}           # the method\n"
        f"  {PROGRAM} run {config}:fedavg    # another one on the same federation\n"
        f"  pytest {folder}\n\n"
        f"How methods are made: {docs() / 'extending.md'}"
    )
    return 0
