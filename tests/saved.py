"""The state that a run left in its folder."""

from pathlib import Path

from flax import serialization


def state_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every array of the last checkpoint; the times beside them differ
    between runs.
    """
    # behind it is its SHA-256
    content = max((folder / "checkpoints").glob("*.ckpt")).read_bytes()[:-32]
    arrays = serialization.msgpack_restore(content)["arrays"]
    return {
        name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()
    }
