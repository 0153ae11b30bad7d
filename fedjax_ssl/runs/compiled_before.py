"""What compiling a run's rounds took before, in a file beside the programs that JAX keeps.

JAX keeps programs by card and version: those of another card are not found again, without a word.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl.runs.compile import Inputs, Program, described


def file_of(program: Program, inputs: Inputs, rounds: int, saved: int | None) -> Path | None:
    """Name the file for a block of rounds; None: no program is kept, or none is compiled.

    Args:
        program: of the run.
        inputs: its arguments.
        rounds: length of the block.
        saved: round of the block whose clients' models are kept, if there is one.
    """
    built = program.built
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    if not folder or not settings.jax_enable_compilation_cache or built.method.recipe.on_host:
        return None
    mesh = built.execution.mesh
    devices = 1 if mesh is None else mesh.size
    parts = program.code, described(inputs)[1], rounds, saved, devices
    return Path(folder) / f"fedjax_ssl-{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


def note(file: Path, seconds: float) -> None:
    """Add how long it took here; a folder that cannot be written is JAX's to complain of."""
    found = _read(file)
    content = json.dumps(found | {_here(): [*found.get(_here(), [])[:1], seconds]})
    with (
        contextlib.suppress(OSError),
        # Processes of several machines note here: each writes a file of its own, and none finds a
        # part of another's.
        tempfile.TemporaryDirectory(dir=file.parent) as own,
    ):
        whole = Path(own) / file.name
        whole.write_text(content)
        os.replace(whole, file)


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
