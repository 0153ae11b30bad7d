"""Random inputs with the shape, classes and clients of another dataset, to run a table without its
data: --data.name=experiments.papers.stand_in:stand_in --data.like=NAME.
"""

import math
from typing import Annotated, Any

import numpy as np

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts
from fedjax_ssl.data.reading.register import ENTRIES
from fedjax_ssl.errors import check_known

# Sizes for datasets that are the user's own files.
NAME = "experiments.papers.stand_in:stand_in"
_OWN = Facts(800, 200, (32,), 10, clients=2)
_STEP = 13  # bytes between two images, which overlap in memory, so any number of them takes little
_BYTES = 1 << 28  # bytes of the inputs, at most, if the number of examples is not given


def stand_in(
    *,
    like: str = "cifar10",
    size: Annotated[int | None, Whole(1)] = None,
    num_classes: Annotated[int | None, Whole(2)] = None,
    examples: Annotated[int | None, Whole(1)] = None,
) -> Dataset:
    """Draw random examples; there is nothing to learn from them.

    Args:
        like: name of another dataset, whose facts are used. A user's own data count as 32 features.
        size: side of the images, in pixels; by default the other dataset's.
        num_classes: number of classes; by default the other dataset's.
        examples: training examples; by default as many as in the other dataset, or as fit into 256
            MB. At most half of them have no label.

    Returns:
        Dataset named "stand_in", with classes of equal size in random order.

    Raises:
        ValueError: there is no such dataset.
    """
    check_known("dataset", like, ENTRIES)
    known = ENTRIES[like].facts or _OWN
    shape = known.shape
    if size is not None and len(shape) == 3:
        shape = (size, size, shape[-1])
    fields = dict(known.fields)
    if num_classes is not None or "class_names" not in fields:
        count = num_classes or known.classes
        fields = {"class_names": tuple(f"class {k}" for k in range(count))}
    train = known.train
    test = known.test
    unlabelled = known.unlabelled
    if examples is None and train * math.prod(shape) > _BYTES and not unlabelled:
        examples = _BYTES // math.prod(shape)
    if examples is not None and examples < train:
        train = examples
        test = min(test, max(examples // 5, 1)) if test else 0
        unlabelled = min(unlabelled, train // 2)
    return Dataset(
        "stand_in",
        _split(train, shape, fields, known.clients, unlabelled),
        _split(test, shape, fields, known.clients, 0) if test else None,
        client_names=tuple(f"client {c}" for c in range(known.clients)) or None,
        extra={"like": like, "published": known.train},
        **fields,
    )


def _split(
    n: int, shape: tuple[int, ...], fields: dict[str, Any], clients: int, lost: int
) -> Split:
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
    known = rng.permutation(n - lost) % len(fields["class_names"])  # equally many of every class
    labels = np.concatenate([known, np.full(lost, -1)])
    client = rng.permutation(n) % clients if clients else None
    coarse = None
    if "correspondence" in fields:
        coarse = np.where(labels < 0, -1, fields["correspondence"].argmax(0)[labels])
    return Split(x, labels, client, coarse)
