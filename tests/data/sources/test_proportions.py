"""The CSV file with the class shares of a user's own sets."""

from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, federate, load
from fedjax_ssl.data.reading.proportions import read_proportions

CLASSES, CLIENTS = ("healthy", "ill"), ("north", "south", "unused")
CLIENT = np.array([0, 0, 0, 1, 1, 1])
SETS = np.array([0, 1, -1, 0, 0, 2])
GOOD = """client,set,ill,healthy
north,0,0.2,0.8
north,1,0.65,0.35

south,0,0.5,0.5
south,2,0.1,0.9
"""


def read(folder: Path, text: str) -> np.ndarray:
    path = folder / "shares.csv"
    path.write_text(text)
    return read_proportions(path, CLASSES, CLIENTS, CLIENT, SETS)


def test_lines_go_to_their_client_set_and_class(tmp_path: Path) -> None:
    expected = np.zeros((2, 3, 2))
    expected[0, :2] = [[0.8, 0.2], [0.35, 0.65]]
    expected[1, 0], expected[1, 2] = [0.5, 0.5], [0.9, 0.1]
    np.testing.assert_allclose(read(tmp_path, GOOD), expected)
    np.testing.assert_allclose(read(tmp_path, "\ufeff" + GOOD.replace("0.2,0.8", "0.2003,0.8")).sum(axis=2)[0, 0], 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ill,healthy\n", "ill,\n"), "column 'healthy' is missing"),
        (("ill,healthy\n", "ill,ill\n"), "column 'ill' is there 2 times"),
        (("ill,healthy\n", "ill,helthy\n"), "unknown column 'helthy'. Did you mean 'healthy'"),
        (("north,1", "nord,1"), "line 3: unknown client 'nord'. Did you mean 'north'"),
        (("north,1", "unused,1"), "line 3: unknown client 'unused'"),
        (("north,1", "north,one"), "line 3: set is 'one'"),
        (("north,1", "north,0"), "line 3: client 'north', set 0 has a line already"),
        (("south,2", "south,1"), "client 'south' has no training example in set 1"),
        (("0.65,0.35", "0.65,0.45"), r"line 3: class shares sum to 1\.1"),
        (("0.65,0.35", "-0.5,1.5"), "all must be finite and at least 0"),
        (("0.65,0.35", "nan,0.35"), "all must be finite and at least 0"),
        (("0.65,0.35", "a,0.35"), "all must be numbers"),
        (("0.65,0.35", "0.65"), "the first line has 4 cells, but line 3 has 3"),
        (("south,2,0.1,0.9\n", ""), "no line for client 'south', set 2"),
        ((GOOD, ""), "has no rows"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, GOOD.replace(*change))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailable, match=r"shares\.csv is not there"):
        read_proportions(tmp_path / "shares.csv", CLASSES, CLIENTS, CLIENT, SETS)


def test_an_npz_file_with_sets_becomes_a_federation(tmp_path: Path) -> None:
    arrays = {
        "inputs": np.arange(12, dtype=np.float32).reshape(6, 2),
        "labels": np.full(6, -1),
        "client": np.array(CLIENTS)[CLIENT],
        "set": SETS,
        "class_names": np.array(CLASSES),
        "test_inputs": np.zeros((2, 2), np.float32),
        "test_labels": np.array([0, 1]),
    }
    np.savez(tmp_path / "scans.npz", **arrays)
    (tmp_path / "shares.csv").write_text(GOOD)
    dataset = load("npz", path=tmp_path / "scans.npz", proportions=tmp_path / "shares.csv")
    data = federate(jax.random.key(0), dataset, supervision="given")
    assert data.kinds() == ("sets",)
    np.testing.assert_allclose(data.weak.matrix[0, 1], [0.35, 0.65])
    np.testing.assert_allclose(data.weak.prior, [(0.8 + 0.35 + 2 * 0.5 + 0.9) / 5, (0.2 + 0.65 + 2 * 0.5 + 0.1) / 5])
    np.savez(tmp_path / "scans.npz", **{name: values for name, values in arrays.items() if name != "set"})
    with pytest.raises(ValueError, match="not the arrays `set` and `client`"):
        load("npz", path=tmp_path / "scans.npz", proportions=tmp_path / "shares.csv")
