"""Execute notebooks and store what they show, for people who read them without running them.

    python notebooks/execute.py                # all of them
    python notebooks/execute.py quickstart     # one

Each runs from top to bottom in an empty folder, with the package of this checkout on a CPU. What is
stored names no place of the machine.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
NOTEBOOKS = {path.stem: path for path in sorted(HERE.glob("*.ipynb"))}
MOST = 300_000  # bytes of a notebook with its outputs
# A file with the code of a cell, as warnings name it.
_CELL = re.compile(r"\S*/ipykernel_\d+/\d+\.py")


def execute(path: Path, folder: Path, environment: Mapping[str, str]) -> nbformat.NotebookNode:
    """Execute a notebook.

    Args:
        path: the notebook.
        folder: where its kernel works.
        environment: of the kernel, beside this process's.

    Returns:
        The notebook with its outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=1800,  # seconds for a cell
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    places = {
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": str(HERE.parent),
    }
    client.execute(env={**os.environ, **places, **environment})
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def without_places(text: str, folder: Path) -> str:
    """Return an output without what it says about this machine's folders."""
    for place, name in ((folder, "."), (HERE.parent, "."), (Path.home(), "~")):
        text = text.replace(str(place), name)
    return _CELL.sub("cell", text)


def store(path: Path) -> None:
    """Execute a notebook and write it with its outputs.

    Raises:
        SystemExit: it is too large with them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        notebook = execute(path, folder, {})
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = without_places(output.text, folder)
    text = nbformat.writes(notebook)
    if len(text) > MOST:
        raise SystemExit(f"{path.name} has {len(text):,} bytes with its outputs, over {MOST:,}")
    path.write_text(f"{text}\n", encoding="utf-8")
    print(f"{path.name}: {len(text):,} bytes")


def main() -> None:
    """Store the outputs of the notebooks that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NOTEBOOKS))
    names = parser.parse_args().names or list(NOTEBOOKS)
    if unknown := sorted({*names} - {*NOTEBOOKS}):
        parser.error(f"there is no notebook {unknown[0]!r}; there are {', '.join(NOTEBOOKS)}")
    for name in names:
        store(NOTEBOOKS[name])


if __name__ == "__main__":
    main()
