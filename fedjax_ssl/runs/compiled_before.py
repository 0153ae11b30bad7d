"""What compiling a run's rounds took before, in a file beside the programs that JAX keeps.

JAX keeps programs by card and version: those of another card are not found again, without a word.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.compile import Inputs, described, static_part


def file_of(built: Built, inputs: Inputs, rounds: int) -> Path | None:
    """Name the file for a block of rounds; None: no program is kept, or none is compiled.

    Args:
        built: the run.
        inputs: arguments of its programs.
        rounds: length of the block.
    """
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    if not folder or not settings.jax_enable_compilation_cache or built.method.on_host:
        return None
    mesh = built.execution.mesh
    devices = 1 if mesh is None else mesh.size
    parts = static_part(built.experiment.config), described(inputs)[1], rounds, devices
    return Path(folder) / f"fedjax_ssl-{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


def note(file: Path, seconds: float) -> None:
    """Add how long it took here; a folder that cannot be written is JAX's to complain of."""
    found = _read(file)
    with contextlib.suppress(OSError):
        file.write_text(json.dumps(found | {_here(): [*found.get(_here(), [])[:1], seconds]}))


def in_words(file: Path) -> str:
    """Say how long it took, here or on another card."""
    found = _read(file)
    if not found:
        return f"for the first time, as far as is noted in {file.parent}, which keeps the program"
    if _here() not in found:
        others = " and ".join(f"{other} ({took[0]:.1f} s)" for other, took in found.items())
        return f"anew: what is kept is for {others}, and this is {_here()}"
    first, *again = found[_here()]
    if not again:
        return f"{first:.1f} s the last time, before the program was kept"
    return f"{again[0]:.1f} s the last time, {first:.1f} s before the program was kept"


def _here() -> str:
    return f"{jax.devices()[0].device_kind} with jax {jax.__version__}"


def _read(file: Path) -> dict[str, list[float]]:
    """Read the first and the last seconds by card and version; nothing where it is damaged."""
    try:
        found: dict[str, list[float]] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found
