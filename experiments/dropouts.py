"""Clients that leave XCLP before or after their codes were sent: what that does to the labels of
those that stay.

    python experiments/dropouts.py  # half a minute of a CPU

Two writers of the digits stay, with one label of each class between them, and six leave: at "start"
their digits are not in the graph, at "codes" they are, without labels. Raw pixels, settings of the
authors' code but five neighbours, 20 draws. Printed is the share of right labels among the other
digits of the two that stay, for few and for many digits at each writer (docs/unreliable.md).
"""

import numpy as np

import fedjax_ssl as fs

DRAWS = 20
WRITERS = 14
STAY = 2
LEAVE = 6
SETTINGS = fs.graph.GraphSettings(
    num_neighbors=5, similarity_power=3.0, label_norm="class", confidence_scale="max"
)


def share_right(dataset: fs.Dataset, digits_each: int, in_graph: int, seed: int) -> float:
    """Return the share of right labels.

    Args:
        dataset: the digits.
        digits_each: of a writer.
        in_graph: writers that leave and whose digits are in the graph.
        seed: decides writers, digits and labels.
    """
    split = dataset.train
    rng = np.random.default_rng(seed)
    writers = rng.permutation(WRITERS)[: STAY + in_graph]
    own = [rng.permutation(np.flatnonzero(split.client == one))[:digits_each] for one in writers]
    rows = np.concatenate(own)
    truth = split.y[rows]
    stays = np.isin(split.client[rows], writers[:STAY])
    known = np.full(len(rows), -1)
    for label in range(10):
        known[rng.permutation(np.flatnonzero(stays & (truth == label)))[:1]] = label
    pixels = split.x[rows].reshape(len(rows), -1) / 16.0
    found, _ = fs.propagate_labels(pixels, known, num_classes=10, settings=SETTINGS)
    judged = stays & (known < 0)
    return float(np.mean(found[judged] == truth[judged]))


def main() -> None:
    """Print the shares."""
    dataset = fs.load_dataset("digits")
    for digits_each in (15, 120):
        for when, in_graph in (("start", 0), ("codes", LEAVE)):
            shares = [share_right(dataset, digits_each, in_graph, seed) for seed in range(DRAWS)]
            print(f"{digits_each} digits each, six lost at {when}: {np.mean(shares):.1%} right")


if __name__ == "__main__":
    main()
