"""The notebook that users start with runs from top to bottom, in few rounds, and shows what its text speaks of."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


@pytest.mark.thorough
def test_quickstart_runs_and_shows_figures_and_accuracies(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    environment = {
        **os.environ,  # with this process's compilation cache
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": re.sub(r"device_count=\d+", "device_count=1", os.environ["XLA_FLAGS"]),  # as a user has
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": str(ROOT),
        "FEDJAX_SSL_NOTEBOOK_ROUNDS": "4",
    }
    # The kernel works in an empty folder: the notebook needs nothing but the package.
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "1,797 pictures of 8 x 8 pixels by 14 writers" in text
    assert "11 clients (11 with labels)" in text
    results = re.findall(r"(labels only|XCLP) +(\S+) % on unseen writers", text)
    assert [name for name, _ in results] == ["labels only", "XCLP"]
    together = re.search(r"one graph of all clients: +(\S+) %", text)
    alone = re.search(r"one graph for every client: +(\S+) %", text)
    assert together and alone
    assert float(together[1]) > float(alone[1]) + 20  # what the text says about one graph per client


def test_quickstart_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
