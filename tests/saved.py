"""What a checkpoint holds of a run's state, for comparisons to the last bit."""

import json
import math
from pathlib import Path

import numpy as np


def state_of(folder: Path) -> tuple[list[dict], bytes]:
    """Descriptions and bytes of all arrays in a run folder's newest checkpoint; the rest of it has seconds."""
    header, _, content = max((folder / "checkpoints").glob("*.ckpt")).read_bytes().partition(b"\n")
    arrays = json.loads(header)["arrays"]
    size = sum(math.prod(one["shape"]) * np.dtype(one["dtype"]).itemsize for one in arrays)
    return arrays, content[:size]
