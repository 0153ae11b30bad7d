"""What a checkpoint holds of a run's state, for comparisons to the last bit."""

import json
import math
from pathlib import Path

import numpy as np


def state_bytes(folder: Path) -> bytes:
    """The arrays of the last checkpoint in a run folder, without the header and the metric rows, which have seconds."""
    content = sorted((folder / "checkpoints").glob("*.ckpt"))[-1].read_bytes()
    begin = content.index(b"\n") + 1
    arrays = json.loads(content[: begin - 1])["arrays"]
    size = sum(math.prod(one["shape"]) * np.dtype(one["dtype"]).itemsize for one in arrays)
    assert size
    return content[begin : begin + size]
