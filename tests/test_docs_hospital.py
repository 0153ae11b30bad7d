"""docs/hospital.md: the page's script and commands on drawn files of four sites."""

import csv
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "hospital.md").read_text(encoding="utf-8")
# Contrast and brightness of a site's pictures, and which share of them has a label.
SITES = {"north": (1.0, 0, 0.4), "south": (0.7, 50, 0.2), "east": (0.85, 20, 0.0), "west": (0.6, 70, 1.0)}


def script() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    return found


def commands() -> list[list[str]]:
    """All commands of the page, in its order."""
    lines = re.findall(r"^    ((?:python|fedjax-ssl) (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def write_sites(folder: Path, count: int, side: int = 40) -> dict[str, str]:
    """Draws `scans/` and `labels.csv`: waves and noise, in every second picture a bright spot.

    Args:
        folder: where to.
        count: pictures of a site.
        side: of a picture, in pixels.

    Returns:
        The labels of the table, by file.
    """
    random = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    table = {}
    for site, (contrast, brightness, labelled) in SITES.items():
        (folder / "scans" / site).mkdir(parents=True)
        for number in range(count):
            ill = number % 2
            waves = np.sin(x / random.uniform(4, 8) + random.uniform(0, 6)) + np.cos(y / random.uniform(4, 8))
            picture = 60 + 25 * waves + random.normal(0, 12, (side, side))
            column, row = random.uniform(0.4 * side, 0.6 * side, 2)
            picture += ill * 120 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * random.uniform(4, 6) ** 2))
            name = f"{site}/{number:04}.png"
            pixels = np.clip(contrast * picture + brightness, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "scans" / name)
            table[name] = ("healthy", "nodule")[ill] if random.random() < labelled else ""
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *table.items()])
    return table


def pack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the first command in this process."""
    monkeypatch.chdir(folder)
    Path("pack.py").write_text(script(), encoding="utf-8")
    python, *arguments = commands()[0]
    monkeypatch.setattr(sys, "argv", arguments)
    assert python == "python"
    runpy.run_path(arguments[0], run_name="__main__")


def test_the_script_gives_every_image_its_site_and_its_label(tmp_path, monkeypatch):
    table = write_sites(tmp_path, 4, side=8)
    del table["north/0000.png"]
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{name},{label}\n" for name, label in table.items()))
    pack(tmp_path, monkeypatch)
    with np.load("scans.npz") as found:
        assert found["inputs"].shape == (16, 32, 32) and found["inputs"].dtype == np.uint8
        assert found["client"].tolist() == [site for site in sorted(SITES) for _ in range(4)]
        names = [*found["class_names"].tolist(), ""]  # -1, the last one, is none
        shown = [names[label] for label in found["labels"]]
    order = [f"{site}/{number:04}.png" for site in sorted(SITES) for number in range(4)]
    assert shown == [table.get(name, "") for name in order] and "" in shown
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("north/9999.png,healthy\n")
    with pytest.raises(SystemExit, match=r"north/9999\.png, which is not in scans"):
        pack(tmp_path, monkeypatch)


@pytest.mark.thorough
def test_four_commands_lead_from_files_to_a_report_and_labels(tmp_path, monkeypatch):
    truth = {f"scans/{name}": label for name, label in write_sites(tmp_path, 60).items()}
    pack(tmp_path, monkeypatch)
    _, *later = commands()
    assert [command[:2] for command in later] == [["fedjax-ssl", name] for name in ("sweep", "report", "predict")]
    for _, *arguments in later:
        subprocess.run([sys.executable, "-m", "fedjax_ssl.cli", *arguments], check=True)
    runs = Path("runs/hospital/runs")
    table = (runs / "method=fedavg,seed=1" / "partition.txt").read_text()
    assert all(f" {site} " in table for site in ("north", "south", "east")) and "west" not in table
    page = Path("hospital.html").read_text()
    assert "fedavg" in page and "xclp" in page and "6 runs" in page
    with open("west.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    right = np.mean([line["name"] == truth[line["input"]] for line in lines])
    summary = json.loads((runs / "method=xclp,seed=0" / "summary.json").read_text())
    # The same images on the way of the script and on that of --resize.
    assert len(lines) == 60 and right == pytest.approx(summary["test_accuracy"]) and right > 0.75  # chance is 0.5
