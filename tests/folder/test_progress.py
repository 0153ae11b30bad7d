import io

import pytest
from rich.text import Text

from fedjax_ssl.folder.progress import Progress

START = {"data": "digits (11 clients)", "folder": "runs/[digits]"}
ROW = {
    "round": 4,
    "test_accuracy": 0.8125,
    "pseudo_label_accuracy": 0.95,
    "client_updates_per_second": 1234.5,
}
SUMMARY = {
    "test_accuracy": 0.9,
    "best_test_accuracy": 0.912,
    "train_seconds": 12.34,
    "evaluate_seconds": 4.56,
    "compile_seconds": None,
    "bytes_up": 12_300_000,
    "bytes_down": 0,
    "peak_memory_bytes": 999,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_file_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    clock = Clock()
    with Progress(12, stream=stream, clock=clock) as progress:
        progress.start(START)
        clock.now += 30.0  # compiling and the first four rounds
        progress.update(4, ROW)
        clock.now += 8.0
        progress.update(8, {"round": 8, "test_accuracy": 0.875, "pseudo_label_accuracy": None})
        progress.note("the checkpoint of round 8 is [damaged]")
        clock.now += 8.0
        progress.update(12, {"round": 12})
        progress.finish(SUMMARY, {"predictions": "runs/[digits]/predictions.csv"})
    text = stream.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.splitlines() == [
        "data    digits (11 clients)",
        "folder  runs/[digits]",
        "compiling ...",
        "round 4/12, accuracy 81.2%, pseudo-labels 95.0%, client updates/s 1,234",
        "round 8/12, accuracy 87.5%, 0:00:08 left",
        "the checkpoint of round 8 is [damaged]",
        "round 12/12",
        "",
        "test accuracy  90.00%",
        "best round     91.20%",
        "training       12.3 s",
        "evaluating     about 4.6 s of that",
        "sent up        12.3 MB",
        "sent down      0 B",
        "peak memory    999 B",
        "predictions    runs/[digits]/predictions.csv",
    ]


def test_a_resumed_run_counts_only_its_own_rounds():
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(20, start_round=10, stream=stream, clock=clock)
    progress.start(START)
    clock.now += 5.0
    progress.update(15, {})
    assert stream.getvalue().endswith("round 15/20\n")  # the time before has compiling in it


def test_the_time_left_is_said_after_the_first_block_and_slow_clients_by_the_seconds_of_one():
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(20, stream=stream, clock=clock)
    progress.start(START)
    clock.now += 60.0  # most of it compiling
    progress.update(5, {"seconds": 10.0, "client_updates_per_second": 0.04})
    assert stream.getvalue().endswith("round 5/20, client updates/s 0.04, 0:00:30 left\n")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "`predict` uses the model of round 9 (the last)"),
        (
            {"selected_round": 4, "validation_examples": 25},
            "of round 4 (the best on 25 validation examples",
        ),
    ],
)
def test_the_last_lines_name_the_model_that_predict_takes(fields, said):
    stream = io.StringIO()
    Progress(9, stream=stream).finish({**SUMMARY, "rounds": 9, **fields}, {})
    assert said in stream.getvalue() and ("about 10.0 points" in stream.getvalue()) == bool(fields)


def test_a_finished_run_compiles_nothing():
    stream = io.StringIO()
    with Progress(20, start_round=20, stream=stream) as progress:
        progress.start(START)
        progress.finish(SUMMARY, {})
    assert "compiling ..." not in stream.getvalue() and "test accuracy  90.00%" in stream.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    with Progress(12, stream=stream) as progress:
        progress.start(START)
        progress.update(4, ROW)
        progress.note("a note above the bar [kept]")
        progress.finish(SUMMARY, {"predictions": "runs/[digits]/predictions.csv"})
    text = stream.getvalue()
    assert "\x1b[" in text
    for part in (
        "11 clients",
        "4/12",
        "accuracy 81.2%",
        "[kept]",
        "90.00%",
        "runs/[digits]/predictions.csv",
    ):
        assert part in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_round_and_accuracy_stay_readable_on_one_line(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    with Progress(8000, stream=stream) as progress:
        progress.start(START)
        before = len(stream.getvalue())
        progress.update(4200, ROW)
        lines = Text.from_ansi(stream.getvalue()[before:]).plain.splitlines()
    (line,) = {one.strip() for one in lines if "round 4200/8000" in one}
    assert len(line) <= width and "accuracy 81.2%" in line
    assert ("client updates/s 1,234" in line) == (width > 60)


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_says_that_it_compiles(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    with Progress(12, stream=stream) as progress:
        progress.start(START)
        assert "compiling ..." in stream.getvalue()
        progress.training()
        assert "training ..." in stream.getvalue()
        progress.update(4, ROW)
        so_far = len(stream.getvalue())
        progress.compiling()  # a shorter last block
        assert "compiling ..." in stream.getvalue()[so_far:]


def test_clients_are_listed_from_the_worst_on():
    stream = io.StringIO()
    progress = Progress(2, stream=stream)
    progress.clients({"north": 0.75, "south-west": 0.5}, "runs/x/client_accuracy.csv")
    progress.clients(
        {str(number): number / 100 for number in range(25)}, "runs/x/client_accuracy.csv"
    )
    lines = stream.getvalue().splitlines()
    assert lines[:3] == [
        "test accuracy by client:",
        "  south-west   50.00%",
        "  north        75.00%",
    ]
    assert lines[3] == "test accuracy by client, the worst:" and lines[4] == "  0    0.00%"
    assert lines[-1] == "  ... 15 more in runs/x/client_accuracy.csv"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(2, stream=stream) as progress:
        progress.start(START)
        progress.update(1, ROW)
    assert "\x1b" not in stream.getvalue()
    assert "round 1/2, accuracy 81.2%" in stream.getvalue()


def test_an_error_leaves_the_terminal_in_order(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with pytest.raises(RuntimeError, match="in a round"), Progress(2, stream=stream) as progress:
        progress.start(START)
        raise RuntimeError("in a round")
    # the cursor is back
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")


def test_a_reader_that_is_gone_is_an_error_that_the_caller_hears_of():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError), Progress(10, stream=Gone()) as progress:
        progress.start(START)
