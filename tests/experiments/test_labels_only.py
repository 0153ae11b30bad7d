"""The picture beside labels only, from the files that all_methods.py leaves."""

import runpy
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "labels_only.py"
FIRST = (
    "method,seed,round,accuracy\nfedavg,0,5,0.5\nfedavg,1,5,0.7\nfedavg,0,10,0.8\nfedavg,1,10,0.8\n"
)
BOUND = '"fedavg, all labels",0,5,0.9\n"fedavg, all labels",1,5,0.9\n'
SECOND = "method,seed,round,accuracy\nfedavg,0,5,0.1\nown,0,5,0.4\nown,1,5,0.6\n"


def test_lines_are_means_over_seeds_without_the_bound_and_a_second_baseline(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, text in zip(folders, (FIRST + BOUND, SECOND), strict=True):
        folder.mkdir()
        (folder / "all_methods_curves.csv").write_text(text)
    script = runpy.run_path(str(SCRIPT))
    found = script["curves"](folders)
    assert found.method.tolist() == ["fedavg", "fedavg", "own (two)"] and found[
        "round"
    ].tolist() == [5, 10, 5]
    np.testing.assert_allclose(found["mean"], [60, 80, 50])
    np.testing.assert_allclose(found["std"], [14.142, 0, 14.142], atol=1e-3)
    script["main"](
        [
            f"{folders[0]},{folders[1]}=both",
            f"{folders[0]}=one",
            "--output",
            str(tmp_path / "a.png"),
        ]
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
