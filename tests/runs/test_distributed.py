"""Several processes train one federation: the same bits as one process, and none is left behind
when one dies.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import config as configs
from fedjax_ssl import federated, runs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.loop import run
from tests.runs.distributed_worker import OWN, get_config
from tests.runs.test_resume import rows_of
from tests.saved import state_of

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("distributed_worker.py")
PROCESSES = 2
DEVICES_EACH = 2
LIMIT = 100.0  # seconds until a process is killed, whatever it waits for
# What harms which process after which round, one after the other on one folder.
HARMS = {"kill": (0, 2), "exception": (1, 3), "freeze": (1, 4), "terminate": (1, 5)}


class Ended(NamedTuple):
    """How the processes of a run ended."""

    codes: list[int]
    logs: list[str]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(devices: int) -> dict[str, str]:
    flags = re.sub(r"(device_count=)\d+", rf"\g<1>{devices}", os.environ["XLA_FLAGS"])
    given = {
        name: value for name, value in os.environ.items() if not name.startswith("FEDJAX_SSL_")
    }
    # Most programs here are small: stored too, they are compiled by the first launch alone.
    given["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return {**given, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def launch(
    folder: Path,
    *overrides: str,
    config: str = str(WORKER),
    harm: str | None = None,
    each: Sequence[str] = ("", ""),
) -> Ended:
    """The same command in every process, but for `each`; who it is, it reads from the
    environment.
    """
    variables = {"HARM": ":".join(map(str, (harm, *HARMS[harm])))} if harm else {}
    if harm == "exception":
        # a file of the tests is a user's own code, whose mistakes end in 2
        variables["FEDJAX_SSL_DEBUG"] = "1"
    command = [str(WORKER), f"--config={config}", f"--workdir={folder}", *overrides]
    logs = folder.with_name(f"{folder.name}_{harm}")
    return start(
        command, logs, variables, each, frozen=HARMS[harm][0] if harm == "freeze" else None
    )


def start(
    command: Sequence[str],
    logs: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    each: Sequence[str] = ("", ""),
    frozen: int | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Python with a command in every process, until all but a frozen one have ended."""
    shared = environment(DEVICES_EACH) | {
        "FEDJAX_SSL_COORDINATOR": f"127.0.0.1:{free_port()}",
        "FEDJAX_SSL_NUM_PROCESSES": str(PROCESSES),
        **variables,
    }
    files = [logs.with_name(f"{logs.name}_{index}.log") for index in range(PROCESSES)]
    with contextlib.ExitStack() as stack:
        processes = []
        for index, log in enumerate(files):
            process = subprocess.Popen(
                [sys.executable, *command, *filter(None, [each[index]])],
                env=shared | {"FEDJAX_SSL_PROCESS_ID": str(index)},
                stdout=stack.enter_context(open(log, "wb")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(end, process)
            processes.append(process)
        deadline = time.monotonic() + limit
        for index, process in enumerate(processes):
            if index != frozen:
                process.wait(max(deadline - time.monotonic(), 0.1))
        if frozen is not None:
            end(processes[frozen])
    texts = [log.read_text(errors="replace") for log in files]
    return Ended([process.returncode for process in processes], texts)


def end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def alone(folder: Path, predictors: str = "", **fields) -> dict:
    config = get_config(predictors)
    config.update_from_flattened_dict(fields)
    return run(config, folder)


def assert_same_run(folder: Path, other: Path) -> None:
    assert rows_of(folder) == rows_of(other)
    assert len((folder / "metrics.csv").read_text().splitlines()) == len(rows_of(other)) + 1
    assert state_of(folder) == state_of(other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One process with 4 devices, not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    alone(folder, **{"federated.devices": 4})
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(tuple(HARMS), marks=pytest.mark.thorough)],
    ids=["everything"],
)
def harmed(request, tmp_path_factory):
    """A run of 2 processes with 2 devices each to which all this happens; what was there before
    the last is kept.
    """
    folder = tmp_path_factory.mktemp("harmed") / "run"
    ended = {}
    for harm in request.param:
        if harm == request.param[-1]:
            shutil.copytree(folder, folder.with_name("before_the_last"))
        ended[harm] = launch(folder, harm=harm)
    ended[None] = launch(folder)
    return folder, ended


def test_when_one_process_comes_to_harm_all_end(harmed):
    _, ended = harmed
    for harm in ended.keys() - {None}:
        check_that_all_ended(harm, ended[harm])


def check_that_all_ended(harm, how):
    codes, logs = how
    victim = HARMS[harm][0]
    other = 1 - victim
    assert f"comes to harm: {harm}" in logs[victim] and all(codes), (codes, logs)
    assert all(f"process {index} of {PROCESSES}: on " in logs[index] for index in range(PROCESSES))
    if harm == "terminate":
        assert codes == [runs.PREEMPTED] * 2, logs
        assert all(
            f"process {index} of 2: a process was asked to end (SIGTERM)" in logs[index]
            for index in (0, 1)
        )
        return
    if harm == "exception":
        assert codes[victim] == 1
        assert (
            "process 1 of 2: ended by RuntimeError" in logs[victim]
            and "made to fail" in logs[victim]
        )
    else:
        assert codes[victim] == -signal.SIGKILL  # of itself, or of the test that found it frozen
    # The other one noticed and ended by itself; nobody waited until the watchdog or the test had
    # enough.
    assert codes[other] not in (-signal.SIGKILL, runs.STALLED), (codes, logs)
    assert re.search(
        "Connection|connection|task|heartbeat", logs[other].split("devices; process 0")[1]
    ), logs[other]


def test_after_all_that_the_same_command_ends_in_the_same_bits(harmed, whole):
    folder, ended = harmed
    assert ended[None].codes == [0, 0], ended[None].logs
    assert_same_run(folder, whole)
    assert "test accuracy" in ended[None].logs[0] and "test accuracy" not in ended[None].logs[1]


def write_own_examples(folder: Path, sizes: np.ndarray) -> None:
    """Images of clients of these sizes, all in one file, and files for two processes with noise
    for the other's.
    """
    generator = np.random.default_rng(0)
    client = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    labels = generator.integers(0, 3, sizes.sum())
    test_labels = generator.integers(0, 3, 40)

    def images(labels: np.ndarray) -> np.ndarray:
        drawn = generator.integers(0, 256, (len(labels), 4, 4, 1), np.uint8)
        drawn[np.arange(len(labels)), labels] = 255
        return drawn

    whole = images(labels)
    test = images(test_labels)
    rest = {"labels": labels, "client": client, "test_images": test, "test_labels": test_labels}
    np.savez(
        folder / "rest.npz",
        **{name: x if x.ndim > 1 else x.astype(np.int32) for name, x in rest.items()},
    )
    np.save(folder / "all.npy", whole)
    devices = PROCESSES * DEVICES_EACH
    dealt = np.asarray(
        federated.deal(jnp.pad(jnp.asarray(sizes), (0, -len(sizes) % devices)), devices)
    )
    for process, own in enumerate(dealt.reshape(PROCESSES, -1)):
        noise = generator.integers(0, 256, whole.shape, np.uint8)
        kept = np.isin(client, own)
        kept[0] = True  # what padding points to is everywhere
        np.save(folder / f"{process}.npy", np.where(kept[:, None, None, None], whole, noise))


@pytest.mark.thorough
def test_two_processes_that_have_the_images_of_half_of_the_clients_each_give_the_bits_of_one_that_has_all(
    tmp_path,
):
    sizes = np.array([12, 41, 7, 23, 30, 5, 18, 26, 9])
    write_own_examples(tmp_path, sizes)
    alone(tmp_path / "one", OWN, **{"data.path": str(tmp_path)})
    where = ("--config.data.residence=host", f"--config.data.path={tmp_path}")
    ended = launch(tmp_path / "two", *where, config=f"{WORKER}:{OWN}")
    assert ended.codes == [0, 0], ended.logs
    assert_same_run(tmp_path / "two", tmp_path / "one")
    line = r"the 2 devices of this process have the examples of (\d+) of 9 clients in rounds 1 to 2 \((\d+), "
    found = [re.search(line, log) for log in ended.logs]
    assert all(found), ended.logs
    clients, examples = zip(*[map(int, one.groups()) for one in found], strict=True)
    assert sum(clients) == 9 and sum(examples) == sizes.sum() and max(examples) < 0.6 * sizes.sum()
    # That of process 0 does not map its file, which costs memory and nothing else.
    assert ["the source has loaded" in log for log in ended.logs] == [True, False]


@pytest.mark.parametrize("devices", [pytest.param(4, marks=pytest.mark.thorough), 1])
def test_a_checkpoint_of_several_processes_goes_on_in_one(harmed, whole, devices, tmp_path):
    folder, ended = harmed
    shutil.copytree(folder.with_name("before_the_last"), tmp_path / "run")
    _, round = HARMS[[harm for harm in HARMS if harm in ended][-2]]
    assert Checkpoints(tmp_path / "run").latest() in (round - 1, round)
    alone(tmp_path / "run", **{"federated.devices": devices})
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.thorough
def test_ordered_sums_and_neighbours_over_two_processes_are_those_of_one(tmp_path):
    alone(tmp_path / "one", "xclp", **{"federated.devices": 4})
    ended = launch(tmp_path / "two", config=f"{WORKER}:xclp")
    assert ended.codes == [0, 0], ended.logs
    assert_same_run(tmp_path / "two", tmp_path / "one")
    for table in ("predictions.csv", "predictions_by_client.csv"):
        assert (tmp_path / "two" / table).read_bytes() == (tmp_path / "one" / table).read_bytes()
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert [row["name"] for row in summary["predictions"]] == ["xclp"]


@pytest.mark.thorough
def test_processes_with_different_configs_are_refused(tmp_path):
    ended = launch(tmp_path / "run", each=("--config.seed=1", "--config.seed=2"))
    assert ended.codes == [2, 2], ended.logs
    for index, log in enumerate(ended.logs):
        assert (
            f"process {index} of 2: error: process 1 of 2 has another config than process 0" in log
        )
        assert "Traceback" not in log
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_processes_that_do_not_find_each_other(tmp_path):
    command = [sys.executable, str(WORKER), f"--config={WORKER}", f"--workdir={tmp_path}"]
    command.append("--config.distributed.initialization_seconds=1")
    who = {"FEDJAX_SSL_COORDINATOR": f"127.0.0.1:{free_port()}", "FEDJAX_SSL_NUM_PROCESSES": "2"}
    process = subprocess.run(
        command,
        env=environment(1) | who | {"FEDJAX_SSL_PROCESS_ID": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert process.returncode == 2
    assert (
        "process 1 of 2: error: the processes did not find each other within 1 seconds"
        in process.stderr
    )
    assert who["FEDJAX_SSL_COORDINATOR"] in process.stderr and "Traceback" not in process.stderr


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {"coordinator": f"127.0.0.1:{port}", "num_processes": 2, "process_id": 0}
        with pytest.raises(ConfigError, match=f"has port {port}, which process 0 cannot open here"):
            runs.start(section(**given))


@pytest.mark.thorough
def test_the_watchdog_lets_live_who_feeds_it_and_ends_who_does_not():
    code = """
import time
from fedjax_ssl.runs.processes import Watchdog
def stuck():
    time.sleep(60)
Watchdog(0.05, "never", 9).stop()
watchdog = Watchdog(1.0, "process 1 of 2: nothing happens", 3)
for _ in range(8):
    time.sleep(0.25)
    watchdog.feed()
print("fed", flush=True)
stuck()
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(1),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert process.returncode == 3 and process.stdout == "fed\n"
    assert "process 1 of 2: nothing happens" in process.stderr and "in stuck" in process.stderr


def section(**fields):
    config = configs.default().distributed
    config.update(fields)
    return config


def test_one_process_needs_no_settings():
    assert runs.settings(section(), {}) is None
    given = {"coordinator": "10.0.0.1:1234", "num_processes": 1, "process_id": 0}
    assert runs.settings(section(**given), {}) is None
    team = runs.start(section())
    assert (team.count, team.writes, team.preempted(1)) == (1, True, False)
    tree = {"state": jnp.arange(3), "round": 1}
    assert team.from_first(tree) is tree and team.values_from_first(tree) is tree


def test_the_environment_fills_in_what_the_config_leaves_open():
    variables = {
        "FEDJAX_SSL_COORDINATOR": "a:1",
        "FEDJAX_SSL_NUM_PROCESSES": "4",
        "FEDJAX_SSL_PROCESS_ID": "3",
    }
    found = runs.settings(section(process_id=2), variables)
    assert found[:3] == ("a:1", 4, 2)
    assert found.heartbeat_seconds == 30 and found.stall_minutes == 60
    assert runs.settings(section(auto=True), {})[:3] == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "variables", "expected"),
    [
        (
            {"coordinator": "a:1"},
            {},
            "has coordinator but no num_processes and no process_id.*FEDJAX_SSL_PROCESS_ID",
        ),
        (
            {"num_processes": 2, "process_id": 0},
            {},
            "has num_processes and process_id but no coordinator",
        ),
        (
            {"coordinator": "a:1", "num_processes": 2, "process_id": 2},
            {},
            r"process_id is 2; .* 0\.\.1",
        ),
        (
            {"coordinator": "a", "num_processes": 2, "process_id": 0},
            {},
            "coordinator is 'a'; it must be host:port",
        ),
        (
            {"coordinator": "a:1", "process_id": 0},
            {"FEDJAX_SSL_NUM_PROCESSES": "two"},
            "NUM_PROCESSES is 'two'",
        ),
        ({"auto": True, "process_id": 1}, {}, "auto takes process_id from the cluster"),
        (
            {"auto": True},
            {"FEDJAX_SSL_COORDINATOR": "a:1"},
            "auto takes coordinator from the cluster",
        ),
    ],
)
def test_settings_that_make_no_sense(fields, variables, expected):
    with pytest.raises(ConfigError, match=expected):
        runs.settings(section(**fields), variables)


def test_every_process_owns_as_many_devices_of_a_run(monkeypatch):
    assert [device.id for device in runs.run_devices(3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"federated\.devices is 5; devices here: 4"):
        runs.run_devices(5)
    there = [
        SimpleNamespace(process_index=index, id=8 * index + slot)
        for index in (0, 1)
        for slot in range(2 + index)
    ]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: there)
    assert [device.id for device in runs.run_devices(2)] == [0, 8]
    assert [device.id for device in runs.run_devices(4)] == [0, 1, 8, 9]
    for devices, expected in ((1, "multiple of 2"), (3, "multiple of 2"), (6, "up to 4")):
        with pytest.raises(ConfigError, match=f"federated.devices is {devices}.*{expected}"):
            runs.run_devices(devices)


def test_shared_out_arrays_are_whole_on_every_device():
    mesh = Mesh(np.array(jax.devices()), ("clients",))
    tree = {
        "key": jax.random.key(3),
        "values": jnp.array([-0.0, jnp.nan, 1.0]),
        "none": jnp.zeros((0, 2)),
    }
    shared = runs.share_out(tree, mesh)
    assert all(
        leaf.is_fully_replicated and len(leaf.devices()) == 4 for leaf in jax.tree.leaves(shared)
    )
    assert np.asarray(shared["values"]).tobytes() == np.asarray(tree["values"]).tobytes()
    assert jax.random.bits(shared["key"]) == jax.random.bits(tree["key"])
    assert runs.share_out(tree, None) is tree
