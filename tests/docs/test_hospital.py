"""The hospitals of docs/your_data.md: the commands of this section on drawn files of four sites."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "your_data.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Example: several hospitals")[2].partition("\n## ")[0]
# Contrast and brightness of a site's pictures, and which share of them has a label.
SITES = {
    "north": (1.0, 0, 0.4),
    "south": (0.7, 50, 0.2),
    "east": (0.85, 20, 0.0),
    "west": (0.6, 70, 1.0),
}


def commands() -> list[list[str]]:
    """Arguments of all commands of the section, in its order."""
    lines = re.findall(r"^    fedjax-ssl ((?:.*\\\n)*.*)$", SECTION, re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def write_sites(folder: Path, count: int, side: int = 40) -> dict[str, str]:
    """Draws `scans/` of pictures of side x side pixels with their table; returns the labels by
    file.

    A picture is of waves and noise, every second one with a bright spot.
    """
    random = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    labels = {}
    for site, (contrast, brightness, labelled) in SITES.items():
        (folder / "scans" / site).mkdir(parents=True)
        for number in range(count):
            ill = number % 2
            waves = np.sin(x / random.uniform(4, 8) + random.uniform(0, 6)) + np.cos(
                y / random.uniform(4, 8)
            )
            picture = 60 + 25 * waves + random.normal(0, 12, (side, side))
            column, row = random.uniform(0.4 * side, 0.6 * side, 2)
            picture += (
                ill
                * 120
                * np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * random.uniform(4, 6) ** 2))
            )
            name = f"{site}/{number:04}.png"
            pixels = np.clip(contrast * picture + brightness, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "scans" / name)
            labels[name] = ("healthy", "nodule")[ill] if random.random() < labelled else ""
    with (folder / "scans" / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(name, name.partition("/")[0], label) for name, label in labels.items()]
        csv.writer(file).writerows([("file", "client", "label"), *rows])
    return labels


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "data"))
    return tmp_path


def test_the_first_command_says_what_is_there(here, capsys):
    labels = write_sites(here, 6, side=8)
    assert cli.main(commands()[0]) == 0
    said = capsys.readouterr().out
    without = sum(not label for label in labels.values())
    assert f"24 examples, {without} of them without a class label" in said and without > 6
    assert (
        "east (6), north (6), south (6), west (6)" in said
        and "healthy" in said
        and "nodule" in said
    )


@pytest.mark.thorough
def test_four_commands_lead_from_files_to_a_report_and_labels(here):
    truth = {f"scans/{name}": label for name, label in write_sites(here, 60).items()}
    assert [arguments[0] for arguments in commands()] == ["data", "sweep", "report", "predict"]
    for arguments in commands():
        subprocess.run([sys.executable, "-m", "fedjax_ssl.cli", *arguments], check=True)
    runs = Path("runs/hospital/runs")
    table = (runs / "method=fedavg,seed=1" / "partition.txt").read_text()
    assert all(f" {site} " in table for site in ("north", "south", "east")) and "west" not in table
    page = Path("runs/hospital/report.html").read_text()
    assert "fedavg" in page and "xclp" in page and "6 runs" in page
    with open("west.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    right = np.mean([line["name"] == truth[line["input"]] for line in lines])
    summary = json.loads((runs / "method=xclp,seed=0" / "summary.json").read_text())
    # The same images on the way of the sweep and on that of the prediction.
    # chance is 0.5
    assert len(lines) == 60 and right == pytest.approx(summary["test_accuracy"]) and right > 0.75
