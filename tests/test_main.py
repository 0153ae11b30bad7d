"""The command line: what a user sees, above all when something is wrong."""

import json
from pathlib import Path

import pytest

from fedjax_ssl import main as command

CONFIGS = Path(__file__).parent.parent / "configs"
DIGITS = f"--config={CONFIGS / 'digits_fedavg.py'}"
QUICK = ("--config.rounds=2", "--config.eval_every=1", "--config.optimizer.local_epochs=1")


@pytest.fixture
def start(monkeypatch, capsys, tmp_path):
    """Calls the command line; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = command.main(["main", *arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_a_run_leaves_everything_in_its_folder_and_goes_on_there(start, tmp_path):
    code, output, _ = start(DIGITS, *QUICK)
    folder = tmp_path / "runs" / "digits_fedavg"
    assert code == 0
    assert "11 clients" in output and "mlp (9,610 parameters)" in output and "round 2/2" in output
    assert "inputs are divided by 16 and not standardized" in output
    for name in (
        "config.json",
        "metrics.csv",
        "metrics.jsonl",
        "summary.json",
        "citations.bib",
        "partition.txt",
    ):
        assert (folder / name).stat().st_size > 0, name
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (
        summary["method"] == "fedavg" and summary["dataset"] == "digits" and summary["rounds"] == 2
    )
    assert [row["round"] for row in rows] == [1, 2]
    assert summary["test_accuracy"] == rows[-1]["test_accuracy"]
    assert summary["bytes_up"] == 2 * 11 * 4 * 9610
    # The same command again is done and changes nothing; one of another config is refused. What can
    # be made again is, and what is gone is not listed. The picture of a short run waits for it.
    assert "the same command again draws it" in output and not list(folder.glob("*.png"))
    before = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.csv").unlink()
    code, output, _ = start(DIGITS, *QUICK)
    assert code == 0 and "complete already" in output and "gone" not in output
    for name in ("metrics.csv", "partition.png"):
        assert (folder / name).exists()
    assert (folder / "metrics.jsonl").read_bytes() == before
    for name in ("metrics.csv", "metrics.jsonl", "partition.png"):
        (folder / name).unlink()
    code, output, _ = start(DIGITS, *QUICK)
    assert "metrics.csv" in " ".join(output.split()).partition("gone from ")[2]
    assert f"{folder / 'metrics.csv'}" not in output
    (folder / "metrics.jsonl").write_bytes(before)
    code, _, error = start(DIGITS, *QUICK, "--config.seed=7")
    assert code == 2 and "seed: 0 -> 7" in error and "--workdir" in error
    # After a truncated checkpoint it falls back to the one before.
    (folder / "checkpoints/round_00000002.ckpt").write_bytes(b"cut")
    (folder / "summary.json").unlink()
    code, _, error = start(DIGITS, *QUICK)
    assert code == 0 and "note:" in error and "round_00000002" in error
    again = json.loads((folder / "summary.json").read_text())
    assert (
        again["test_accuracy"] == summary["test_accuracy"]
        and again["bytes_up"] == summary["bytes_up"]
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (DIGITS, "--config.federated.devices=1000"),
            ("config.federated.devices is 1000; devices here: ", "up to 64"),
        ),
        ((DIGITS, "--config.rounds=0"), ("config.rounds is 0", "nothing to do")),
        ((DIGITS, "--config.supervision.name=none"), ("label",)),
        (
            (DIGITS, "--config.federated.cohort_size=12"),
            ("cohort_size is 12", "11 clients (3 held out by data.test_clients)", "1..11"),
        ),
        (
            (f"--config={CONFIGS / 'femnist_xclp.py'}:glyps",),
            ("data is 'glyps'", "data: femnist or glyphs"),
        ),
        (
            ("--config=configs/digits_fedavg.py",),
            ("no config file", "in the package: digits_fedavg"),
        ),
        ((), ("name is missing", "usage:")),
        ((DIGITS, "--workdir"), ("--workdir needs a value",)),
        ((DIGITS, "more"), ("unexpected argument 'more'",)),
    ],
)
def test_a_mistake_gets_one_message_and_exit_code_2(start, arguments, expected):
    code, _, error = start(*arguments)
    assert code == 2
    assert error.count("error:") == 1 and "Traceback" not in error
    for part in expected:
        assert part in error, error


def test_femnist_without_data_says_what_to_do(start, tmp_path):
    code, _, error = start(
        f"--config={CONFIGS / 'femnist_xclp.py'}", "--config.data.download=false"
    )
    assert code == 2
    assert "federated_emnist_train.sqlite" in error and str(tmp_path / "data") in error
    assert "--config configs/femnist_xclp.py:glyphs" in error


def test_help_lists_methods_and_datasets(start):
    code, output, _ = start("--help")
    assert code == 0
    assert "xclp" in output and "fedsiam" in output and "femnist" in output
