import os
import signal
import subprocess
import sys

import filelock
import pytest

from fedjax_ssl.folder.folder_lock import FolderLock, FolderLocked

HOLD = """
import sys
from fedjax_ssl.folder.folder_lock import FolderLock
held = FolderLock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_living_process_keeps_others_out_and_a_killed_one_does_not(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(
                FolderLocked, match=rf"process {holder.pid} on host .*another --workdir"
            ):
                FolderLock(tmp_path)
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
    with FolderLock(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".owner").read_text()


def test_release_gives_the_folder_back(tmp_path):
    first = FolderLock(tmp_path)
    with pytest.raises(FolderLocked, match=f"process {os.getpid()}"):
        FolderLock(tmp_path)
    first.close()
    first.close()
    FolderLock(tmp_path).close()


def test_a_file_of_nonsense_is_no_obstacle(tmp_path):
    (tmp_path / ".owner").write_text("{half a rec")
    with FolderLock(tmp_path), pytest.raises(FolderLocked):
        FolderLock(tmp_path)


def test_without_locks_the_run_goes_on_and_says_so(tmp_path, monkeypatch):
    def unsupported(*_, **__):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", unsupported)
    with pytest.warns(UserWarning, match="without locks"), FolderLock(tmp_path):
        pass
