"""What a run tells the compiler."""

import pytest

from fedjax_ssl.experiment import programs


def test_a_processors_programs_take_less_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    assert programs.compiler_options() == {"xla_backend_optimization_level": 1}
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert programs.compiler_options() == {}


def test_an_accelerators_compiler_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "backend", lambda: "gpu")
    assert programs.compiler_options() == {}
