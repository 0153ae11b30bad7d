"""A disk that fills up while a run writes: one message, nothing lost, and the same run goes on
to the same bits.
"""

import builtins
import contextlib
import errno
import json
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl.folder import files, rows
from fedjax_ssl.folder.files import StorageError
from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.folder.run_folder import RunFolder

CONFIG = {"method": {"name": "fedavg"}, "seed": 0}
ROUNDS = 6
BEST = (2, 5)  # rounds with the best model so far


class Disk:
    """Takes so many more bytes; then a write ends in the middle, as on a full disk."""

    def __init__(self, room: int):
        self.room = room
        self.written = 0

    def open(self, file, mode="r", **how):
        opened = builtins.open(file, mode, **how)  # noqa: SIM115
        if "r" not in mode:
            write = opened.write
            # The C classes take no attributes of one's own: a stand-in for those methods that
            # writers use.
            return _Opened(self, opened, write)
        return opened

    def take(self, content) -> int:
        """How much of it fits."""
        fits = min(len(content), self.room)
        self.room = self.room - fits
        self.written = self.written + fits
        return fits


class _Opened:
    def __init__(self, disk, file, write):
        self._disk = disk
        self._file = file
        self._write = write

    def write(self, content):
        content = content if isinstance(content, str) else bytes(content)
        fits = self._disk.take(content)
        self._write(content[:fits])
        if fits < len(content):
            self._file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    def writelines(self, parts):
        for part in parts:
            self.write(part)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()


def train(folder: Path) -> None:
    """A run whose round multiplies a state, from the last checkpoint on."""
    with RunFolder(folder, CONFIG) as record:
        state = {"w": np.arange(50, dtype=np.float32), "round": np.int32(0)}
        found = record.restore(state)
        start, state, _ = found or (0, state, {})
        record.write("partition.txt", "clients\n" * 20)
        record.write("model.json", '{"inputs": [8, 8, 1]}')
        for number in range(start + 1, ROUNDS + 1):
            state = {"w": state["w"] * np.float32(1.1) + number, "round": np.int32(number)}
            loss = float(state["w"].sum())
            record.append(
                {"round": number, "loss": loss, "clients": 3}, {"ann": 0.1 * number, "bob": 0.5}
            )
            if number in BEST:
                record.keep_best(number, state)
            record.save(number, state, {"train_seconds": 1.0})
        record.summary()
        record.write("summary.json", json.dumps({"method": "fedavg", "rounds": ROUNDS}))


def content_of(folder: Path) -> dict[str, bytes]:
    hidden = (
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in hidden}


def on(disk: Disk, monkeypatch) -> None:
    for module in (files, rows):
        monkeypatch.setattr(module, "open", disk.open, raising=False)


@pytest.mark.parametrize("moments", [8, pytest.param(150, marks=pytest.mark.thorough)])
def test_wherever_the_disk_fills_up_the_same_command_ends_in_the_same_bits(
    tmp_path, monkeypatch, moments
) -> None:
    everything = Disk(10**9)
    on(everything, monkeypatch)
    train(tmp_path / "whole")
    expected = content_of(tmp_path / "whole")
    rooms = range(0, everything.written, everything.written // moments)
    for room in rooms:
        folder = tmp_path / f"full_{room}"
        on(Disk(room), monkeypatch)
        with pytest.raises(
            StorageError, match=r"cannot be written: No space left on device .* Make room"
        ) as caught:
            train(folder)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 74
        on(Disk(10**9), monkeypatch)
        train(folder)
        assert content_of(folder) == expected, f"after {room} bytes"
    assert len(rooms) >= moments
    assert {Path(name).name for name in expected if "best" in name} == {
        f"round_{one:08d}.ckpt" for one in BEST
    }


def test_the_message_names_file_size_and_what_is_safe(tmp_path, monkeypatch) -> None:
    train(tmp_path / "whole")
    size = (tmp_path / "whole" / "checkpoints" / f"round_{ROUNDS:08d}.ckpt").stat().st_size
    assert size > 200
    disk = Disk(10**9)
    on(disk, monkeypatch)
    folder = tmp_path / "run"
    with RunFolder(folder, CONFIG) as record:
        state = {"w": np.zeros(50, np.float32)}
        record.restore(state)
        record.append({"round": 1})
        record.save(1, state, {})
        disk.room = 100
        with pytest.raises(StorageError) as caught:
            record.save(2, state, {})
    text = str(caught.value)
    assert text.startswith(f"{folder / 'checkpoints'} cannot be written: No space left on device")
    assert "It takes 200 B." in text
    assert text.endswith("The same command goes on from the checkpoint of round 1, which is safe.")


def test_a_read_only_folder_is_one_message(tmp_path, monkeypatch) -> None:
    def refuse(file, mode="r", **how):
        if "r" not in mode:
            raise OSError(errno.EROFS, "Read-only file system", str(file))
        return builtins.open(file, mode, **how)

    monkeypatch.setattr(files, "open", refuse, raising=False)
    with pytest.raises(
        StorageError, match=r"cannot be written: Read-only file system .*Nothing was started"
    ):
        RunFolder(tmp_path / "run", CONFIG)


def test_a_run_goes_on_without_its_side_files(tmp_path) -> None:
    """The files that a run writes anyway are written again."""
    train(tmp_path / "whole")
    expected = content_of(tmp_path / "whole")
    damages = {
        "metrics.csv": [None, b"", b"\xff"],
        "summary.json": [None, b"", b"[]", b"{}", b'{"method": "xclp", "rounds": 6}', b"[" * 10**5],
        "model.json": [None, b"\xff"],
        "partition.txt": [None],
    }
    for name, contents in damages.items():
        for place, content in enumerate(contents):
            folder = tmp_path / f"{Path(name).name}{place}"
            train(folder)
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
            said = name == "summary.json" and content is not None
            with pytest.warns(match="written again") if said else contextlib.nullcontext():
                train(folder)
            assert content_of(folder) == expected, (name, content)


@pytest.mark.filterwarnings("ignore:.*is not of this run")
def test_rows_that_are_lost_are_said(tmp_path) -> None:
    train(tmp_path)
    rows = tmp_path / "metrics.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    for content in (
        lines[1:],
        [*lines[:-1], lines[-1][:-30]],
        [lines[0].replace(b"3", b"4"), *lines[1:]],
    ):
        rows.write_bytes(b"".join(content))
        with pytest.warns(
            match="has other rows than those that the checkpoint of round 6 was saved with"
        ):
            train(tmp_path)
    for content in (b"\xff\x00\n", b"{}\n", b"[1]\n"):
        rows.write_bytes(content)
        with pytest.raises(RunFolderError, match="line 1 is damaged"):
            train(tmp_path)
    rows.unlink()
    with pytest.warns(match="is gone: totals and metrics are of the rounds after 6 only"):
        train(tmp_path)


def test_a_checkpoint_is_no_larger_after_many_rows(tmp_path) -> None:
    """A later checkpoint that is damaged costs the rounds since the one before, and their rows
    are written again.
    """
    train(tmp_path)
    sizes = {one.name: one.stat().st_size for one in (tmp_path / "checkpoints").glob("*.ckpt")}
    # digits of a number
    assert len(sizes) == 2 and max(sizes.values()) - min(sizes.values()) <= 2, sizes
    expected = content_of(tmp_path)
    (tmp_path / "checkpoints" / "round_00000006.ckpt").write_bytes(b"")
    with pytest.warns(match="round 6 is damaged"):
        train(tmp_path)
    assert content_of(tmp_path) == expected


def test_that_training_starts_again_is_said(tmp_path) -> None:
    train(tmp_path)
    for one in (tmp_path / "checkpoints").iterdir():
        one.unlink()
    with pytest.warns(
        match=(
            "has rows up to round 6, but there is no checkpoint: training starts again from round 0"
        )
    ):
        train(tmp_path)


def test_an_older_checkpoint_under_a_newer_name_is_passed_over(tmp_path) -> None:
    train(tmp_path)
    folder = tmp_path / "checkpoints"
    expected = content_of(tmp_path)
    (folder / "round_00000006.ckpt").write_bytes((folder / "round_00000005.ckpt").read_bytes())
    with pytest.warns(match=r"round 6 is damaged and passed over: .* holds round 5"):
        train(tmp_path)
    assert content_of(tmp_path) == expected


def test_the_best_model_waits_for_a_checkpoint_as_it_was(tmp_path) -> None:
    with RunFolder(tmp_path / "run", CONFIG) as record:
        state = {"w": np.zeros(3)}
        record.restore(state)
        record.keep_best(1, state)
        state["w"] += 1
        assert record.restore_best(state) is None
        record.save(2, state, {})
        round, best, _ = record.restore_best(state)
    assert round == 1 and best["w"].tolist() == [0, 0, 0]
