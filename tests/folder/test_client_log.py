import contextlib

import pytest

from fedjax_ssl.folder.folder_lock import FolderMended
from fedjax_ssl.folder.rows import ClientLog


def test_a_column_per_client_that_has_test_examples(tmp_path):
    log = ClientLog(tmp_path)
    log.append(5, {"north, old": 0.5, "7": 0.25})
    log.append(10, {"north, old": 0.75, "7": 1.0})
    assert log.path.read_text() == 'round,"north, old",7\n5,0.5,0.25\n10,0.75,1.0\n'


def test_a_run_that_goes_on_drops_later_rounds_and_what_was_cut_short(tmp_path):
    log = ClientLog(tmp_path)
    for round in (5, 10, 15):
        log.append(round, {"a": 0.5, "b": round / 100})
    with log.path.open("a") as file:
        file.write("20,0.")
    ClientLog(tmp_path, after_round=10).append(15, {"a": 0.5, "b": 0.9})
    assert log.path.read_text() == "round,a,b\n5,0.5,0.05\n10,0.5,0.1\n15,0.5,0.9\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"round,x\n5,1\n",
        b"",
        b'round,a,b\n"' + b"x" * 200_000 + b'",1,2\n',
        b"round\n\xb2,1\n",
    ],
)
def test_a_table_that_is_damaged_or_of_others_is_no_obstacle(tmp_path, content):
    (tmp_path / "client_accuracy.csv").write_bytes(content)
    log = ClientLog(tmp_path, after_round=9)
    noted = pytest.warns(FolderMended, match="it starts anew with round 10")
    with noted if b"x\n" in content else contextlib.nullcontext():
        log.append(10, {"a": 0.5, "b": 0.25})
    assert log.path.read_text() == "round,a,b\n10,0.5,0.25\n"
