"""`stand_in`: random inputs with the shape, classes and clients of another dataset, to try a
config without data.
"""

import math
import re
from typing import Annotated, Any

import numpy as np

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.register import ENTRIES, dataset
from fedjax_ssl.errors import check_known

# of what stands for a user's own files
_OWN = "1,000 examples of 2 hospitals, 32 features, 10 classes"
_STEP = 13  # bytes between two images, which overlap in memory: any number of them takes little
_BYTES = 1 << 28  # of the inputs, at most, where examples are not given


@dataset(
    "stand_in",
    "random inputs with the shape, classes and clients of another dataset, like=NAME; in the "
    "package",
    terms="part of this package, Apache-2.0",
    kind="random",
)
def load_stand_in(
    *,
    like: str = "cifar10",
    size: Annotated[int | None, Whole(1)] = None,
    num_classes: Annotated[int | None, Whole(2)] = None,
    examples: Annotated[int | None, Whole(1)] = None,
) -> Dataset:
    """Draw random examples; there is nothing to learn from them.

    Args:
        like: name of another dataset, whose registered facts are taken. A user's own files are
            taken to have 32 features.
        size: side of the images, in pixels; by default that of the other dataset.
        num_classes: by default those of the other dataset.
        examples: training examples; by default as many as there, or as fit into 256 MB. At most
            half have no label.

    Returns:
        Dataset named "stand_in", with classes of equal size in random order.

    Raises:
        ValueError: there is no such dataset.
    """
    check_known("dataset", like, ENTRIES)
    entry = ENTRIES[like]
    said = _OWN if entry.kind in ("own", "prepared") else entry.description
    shape = _shape(said, size)
    archive = entry.archive() if entry.archive else None
    facts: dict[str, Any] = dict(archive.prepared.facts) if archive and archive.prepared else {}
    if num_classes is not None or "class_names" not in facts:
        count = num_classes or _number(said, r"(\d[\d,]*) (?:classes|kinds)") or 2
        facts = {"class_names": tuple(f"class {k}" for k in range(count))}
    train, test = (archive and archive.examples) or _counts(said)
    published = train
    unlabelled = _number(said, r"(\d[\d,]*) without a label")
    if examples is None and train * math.prod(shape) > _BYTES and not unlabelled:
        examples = _BYTES // math.prod(shape)
    if examples is not None and examples < train:
        train = examples
        test = min(test, max(examples // 5, 1)) if test else 0
        unlabelled = min(unlabelled, train // 2)
    clients = _number(said, r"(\d[\d,]*) (?:writers|centres|hospitals|drawers|training)")
    return Dataset(
        "stand_in",
        _split(train, shape, facts, clients, unlabelled),
        _split(test, shape, facts, clients, 0) if test else None,
        client_names=tuple(f"client {c}" for c in range(clients)) or None,
        extra={"like": like, "published": published},
        **facts,
    )


def _shape(said: str, size: int | None) -> tuple[int, ...]:
    if found := re.search(r"(\d+)x(\d+)x(\d+)", said):
        height, width, channels = map(int, found.groups())
        return (size or height, size or width, channels)
    return (_number(said, r"(\d[\d,]*) features"),)


def _number(said: str, pattern: str) -> int:
    found = re.search(pattern, said)
    return int(found[1].replace(",", "")) if found else 0


def _counts(said: str) -> tuple[int, int]:
    """Training and test examples; FLamby's datasets have a test split of their own."""
    total = _number(said, r"^(\d[\d,]*)") or 20_000
    test = total // 5 if re.search(r"centres|hospitals", said) else 0
    return total - test, test


def _split(n: int, shape: tuple[int, ...], facts: dict[str, Any], clients: int, lost: int) -> Split:
    rng = np.random.default_rng(n)
    each = math.prod(shape)
    count = each + _STEP * n
    if len(shape) > 1:
        pool = rng.integers(0, 256, count, np.uint8)
    else:
        pool = rng.normal(size=count).astype(np.float32)
    strides = (_STEP, *(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
    x = np.lib.stride_tricks.as_strided(
        pool, (n, *shape), [step * pool.itemsize for step in strides], writeable=False
    )
    known = rng.permutation(n - lost) % len(facts["class_names"])  # equally many of every class
    labels = np.concatenate([known, np.full(lost, -1)])
    client = rng.permutation(n) % clients if clients else None
    coarse = None
    if "correspondence" in facts:
        coarse = np.where(labels < 0, -1, facts["correspondence"].argmax(0)[labels])
    return Split(x, labels, client, coarse)
