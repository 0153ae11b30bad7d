"""How many threads and devices a command line starts XLA with."""

import os
import subprocess
import sys

import pytest

from fedjax_ssl import processor
from fedjax_ssl.command_line import map_large_buffers, message_of, use_processor
from fedjax_ssl.config import ConfigError, ConfigNote
from fedjax_ssl.folder.environment import device_description


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings as a new process has them; jax's own stay those of the suite."""
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr("jax.config.update", lambda name, value: None)


@pytest.mark.usefixtures("unset")
def test_more_devices_than_cores_are_made_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 1)
    with pytest.warns(
        ConfigNote, match=r"config\.federated\.devices is 3 on 1 core: more devices do not"
    ):
        use_processor(None, 3)
    assert os.environ["NPROC"] == "3"


@pytest.mark.usefixtures("unset")
def test_nothing_asked_for_leaves_everything_as_it_is() -> None:
    use_processor(None, None)
    assert "NPROC" not in os.environ
    assert processor.threads() == processor.cores()


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("threads", "devices", "pool"),
    [(1, None, 1), (3, 1, 3), (4, 4, 4), (20, 4, 20), (None, 3, 4)],
)
def test_devices_that_wait_for_each_other_have_threads_enough(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, devices: int, pool: int
) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 4)
    use_processor(threads, devices)
    assert os.environ["NPROC"] == str(pool)
    assert processor.threads() == min(pool, processor.cores())


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("variable", "value", "count"),
    [
        *[
            ("NPROC", "1", 1),
            ("NPROC", "2", 2),
            ("OMP_NUM_THREADS", "3", 3),
            ("OMP_NUM_THREADS", "40", 4),
        ],
        ("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false", 1),
    ],
)
def test_an_environment_of_fewer_threads_gets_as_many_devices(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, count: int
) -> None:
    told = {}
    monkeypatch.setattr(processor, "cores", lambda: 4)
    monkeypatch.setattr("jax.config.update", told.__setitem__)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv(variable, value)
    processor.start()
    assert told == {"jax_num_cpu_devices": count} and processor.threads() == count


@pytest.mark.parametrize(
    ("given", "used"), [("1", 1), ("0", 1), ("1000000", None), ("many", None), ("", None)]
)
def test_threads_are_no_more_than_cores(
    monkeypatch: pytest.MonkeyPatch, given: str, used: int | None
) -> None:
    monkeypatch.setenv("NPROC", given)
    assert processor.threads() == (used or processor.cores())


def test_fewer_threads_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 2)
    monkeypatch.setenv("NPROC", "1")
    assert device_description() == "CPU (2 cores, 1 thread, 4 devices)"


@pytest.mark.usefixtures("unset")
def test_more_threads_than_asked_for_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 4)
    with pytest.warns(ConfigNote, match=r"config\.threads is 1; 2 devices need 2"):
        use_processor(1, 2)
    monkeypatch.setenv("NPROC", "50")
    use_processor(None, 2)
    assert os.environ["NPROC"] == "50", "the user's own"


@pytest.mark.parametrize("threads", [0, "two", 1.5, True])
def test_what_is_no_number_of_threads_is_refused(threads: object) -> None:
    with pytest.raises(
        ConfigError, match=r"config\.threads is .*; it must be a whole number of at least 1"
    ):
        use_processor(threads)


@pytest.mark.thorough
def test_a_processor_starts_as_many_devices_as_share_a_cohort() -> None:
    program = (
        "from fedjax_ssl import processor; processor.cores = lambda: 4;"
        "from fedjax_ssl.command_line import use_processor; use_processor(None, 3);"
        "import jax; print(jax.device_count(), __import__('os').environ['NPROC'])"
    )
    given = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["3", "4"], done.stderr


@pytest.mark.parametrize("refused", [None, -1, -2, -3])
def test_large_buffers_are_mapped_and_the_scratch_of_operations_is_kept(
    monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    told = {}

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            told[name] = value
            return int(name != refused)

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    assert map_large_buffers() == (refused is None)
    assert told[-3] == 2**24
    if refused is None:
        assert told[-1] > 2 * told[-3]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not map_large_buffers()


@pytest.mark.parametrize("platforms", ["cuda", "rocm,cpu", "tpu"])
def test_a_platform_that_jax_has_no_part_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, platforms: str
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"JAX_PLATFORMS={platforms}, but .* pip install 'jax"):
        use_processor(None)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    processor.check_platform()


def test_a_device_that_does_not_answer_is_jaxs_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    error = RuntimeError("Unable to initialize backend 'cuda': no device\nmore lines")
    said = message_of(error)
    assert said is not None and said.endswith("Unable to initialize backend 'cuda': no device")
    assert "JAX_PLATFORMS=cuda" in said
