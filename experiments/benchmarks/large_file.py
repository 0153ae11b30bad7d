"""Seconds and memory to read a file of FEMNIST's size, in fedjax's form, with generated images.

python experiments/benchmarks/large_file.py --folder FOLDER    # writes 0.25 GB
python experiments/benchmarks/large_file.py --folder FOLDER    # reads them
"""

import argparse
import resource
import sqlite3
import time
import zlib
from pathlib import Path

import numpy as np

from fedjax_ssl.data.sources.femnist import SQLITE, read_femnist

WRITERS, EACH = 3_400, {"train": 212, "test": 24}  # 802,400 images


def write(path: Path, each: int) -> None:
    """Characters of one stroke: a patch of grey values on the background 1."""
    from flax import serialization

    generator = np.random.default_rng(0)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE federated_data (client_id BLOB PRIMARY KEY, data BLOB, num_examples "
            "INTEGER)"
        )
        for writer in range(WRITERS):
            pixels = np.ones((each, 28, 28), np.float32)
            pixels[:, 6:22, 10:18] = (
                generator.integers(0, 256, (each, 16, 8)).astype(np.float32) / 255
            )
            content = {"pixels": pixels, "label": generator.integers(0, 62, each).astype(np.int32)}
            data = zlib.compress(serialization.msgpack_serialize(content), 1)
            database.execute(
                "INSERT INTO federated_data VALUES (?, ?, ?)",
                (f"f{writer:04}".encode(), data, each),
            )
    database.close()


def main() -> None:
    """Writes what is missing, reads all and prints what that took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / name for name in SQLITE}
    missing = [
        (path, each)
        for path, each in zip(files.values(), EACH.values(), strict=True)
        if not path.exists()
    ]
    for path, each in missing:
        write(path, each)
    if missing:
        print("written; start again, so that the memory is that of reading alone")
        return
    wall = time.perf_counter()
    processor = time.process_time()
    dataset = read_femnist(files)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{len(dataset.train) + len(dataset.test or ()):,} images in "
        f"{time.perf_counter() - wall:.1f} s, {time.process_time() - processor:.1f} s of "
        f"processor time; at most {memory:.2f} GB of memory"
    )


if __name__ == "__main__":
    main()
