"""What a mistake on the benchmark's command line has to come to."""

import pytest

from fedjax_ssl import bench


def check_refused(arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """One message with these words on standard error, nothing else, and exit code 2."""
    assert bench.main(["bench", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    for word in words:
        assert word in output.err
