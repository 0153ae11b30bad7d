"""What the first lines of a run say of compiling: on cards that are pretended."""

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from fedjax_ssl.runs import compiled_before


def test_seconds_of_another_card_promise_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept"

    def says_on(card: str) -> str:
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=card)])
        return compiled_before.in_words(file)

    assert says_on("NVIDIA H100").startswith("for the first time")
    compiled_before.note(file, 25.14)
    assert says_on("NVIDIA H100") == "25.1 s the last time, before the program was kept"
    assert says_on("NVIDIA H200") == (
        f"anew: what is kept is for NVIDIA H100 with jax {jax.__version__} (25.1 s), "
        f"and this is NVIDIA H200 with jax {jax.__version__}"
    )
    compiled_before.note(file, 31.0)
    says_on("NVIDIA H100")
    for seconds in (2.0, 3.0):
        compiled_before.note(file, seconds)
    said = "3.0 s the last time, 25.1 s before the program was kept"
    assert says_on("NVIDIA H100") == said
    assert [*tmp_path.iterdir()] == [file]
    file.write_text("{")
    assert says_on("NVIDIA H100").startswith("for the first time")
    compiled_before.note(tmp_path / "nowhere" / "kept", 1.0)
