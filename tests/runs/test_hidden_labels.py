"""Labels that nobody sees: others in their place change no bit of what is trained, whatever the
source and the rule.

That it is so for every method is in tests/test_contract.py.
"""

import chex
import jax
import numpy as np
import pytest

from fedjax_ssl import presets
from fedjax_ssl.data import SUPERVISIONS
from fedjax_ssl.runs.build import build, federate, load_experiment
from fedjax_ssl.runs.rounds import run_rounds
from tests import toy
from tests.data.sources import (
    test_archives,
    test_folder,
    test_leaf,
    test_mini_imagenet,
)
from tests.data.sources import test_rsna as rsna

RNG = np.random.default_rng(0)
SITES = ("north", "south", "east")
CLASSES = ("a", "b", "c")


def labels(count=18, unlabelled=6):
    """Of every site; the last ones have none."""
    return np.where(np.arange(count) < count - unlabelled, np.arange(count) % len(CLASSES), -1)


def arrays():
    y = np.concatenate([labels() for _ in SITES])
    return (
        RNG.random((len(y), 5), np.float32),
        y,
        np.repeat(np.arange(len(SITES)), len(y) // len(SITES)),
    )


def npz(folder):
    x, y, client = arrays()
    np.savez(folder / "x.npz", inputs=x, labels=y, client=client)
    return folder / "x.npz"


def table(folder):
    rows = [
        f"{x[0]},{x[1]},{CLASSES[label] if label >= 0 else ''},{SITES[client]}"
        for x, label, client in zip(*arrays(), strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(["one,two,label,client", *rows]))
    return folder / "x.csv"


def folder(folder):
    for site in SITES:
        for place, label in enumerate(labels(9, 3)):
            kind = folder / "images" / site / (CLASSES[label] if label >= 0 else "unlabelled")
            kind.mkdir(parents=True, exist_ok=True)
            test_folder.Image.fromarray(RNG.integers(0, 256, (6, 6), np.uint8)).save(
                kind / f"{place}.png"
            )
    return folder / "images"


def femnist(folder):
    test_archives.write_femnist(folder)
    return folder


def leaf(folder):
    test_leaf.write_leaf(folder / "train", {"f0": [1, 2, 3, 4], "f1": [4, 3, 2, 1]})
    return folder


def slices(folder):
    (folder / "stage_2_train").mkdir()
    kinds = {f"ID_{place:09}": (rsna.CLASSES[place % 5],) for place in range(10)}
    rsna.write_table(folder, kinds)
    for place, name in enumerate(kinds):
        rsna.write_slice(
            folder / "stage_2_train" / f"{name}.dcm", rsna.units(place % 5), f"P{place % 2}"
        )
    return folder


# How a source is generated, and the options that it is read with.
SOURCES = {
    "npz": (npz, {}),
    "table": (table, {}),
    "folder": (folder, {}),
    "femnist": (femnist, {}),
    "femnist_leaf": (leaf, {}),
    "rsna_hemorrhage": (slices, {"size": 6}),
    "mini_imagenet": (lambda folder: test_mini_imagenet.write(folder), {}),
}


def assert_hidden_labels_do_not_matter(config):
    experiment = load_experiment(config)
    federation = federate(experiment, jax.random.key(0))
    scrambled = toy.with_hidden_labels_scrambled(federation)
    assert (np.asarray(federation.labels) != np.asarray(scrambled.labels)).any()
    method = build(experiment, federation).method
    key = jax.random.key(1)
    start = method.init(key, federation)
    train = jax.jit(lambda data: run_rounds(method, key, start, data, 2)[0])
    state = train(federation)
    chex.assert_trees_all_equal(train(scrambled), state)
    leaves = zip(jax.tree.leaves(start.params), jax.tree.leaves(state.params), strict=True)
    assert any((np.asarray(before) != np.asarray(after)).any() for before, after in leaves)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOURCES)
def test_of_every_kind_of_source(tmp_path, name):
    generate, options = SOURCES[name]
    config = presets.source("digits", "fedsem,per_client", rounds=2)
    config.data.name = name
    config.data.path = str(generate(tmp_path))
    config.data.root = str(tmp_path)
    config.data.test_clients = 0
    for option, value in options.items():
        config.data[option] = value
    if name == "mini_imagenet":
        config.partition.name = "iid"
        config.partition.num_clients = 2
    config.supervision.labels = 2
    config.federated.cohort_size = None
    config.model.hidden = (4,)
    assert_hidden_labels_do_not_matter(config)


# Options, and the method that needs no others.
RULES = {
    "all": ({"labelled_clients": 4}, "xclp,per_client"),
    "per_client": ({"labels": 3}, "fedsem,per_client"),
    "per_class": ({"labels": 1}, "fixmatch,per_class"),
    "total_per_class": ({"labels": 3}, "fedsem,per_client"),
    "circulant": ({"label_counts": (3, 2, 0, 0, 0, 0, 0, 0, 0, 1)}, "fedsem,per_client"),
    "fraction": ({"fraction": 0.2}, "fedsem,per_client"),
    "total": ({"labels": 30}, "fedsem,per_client"),
    "xclp_noniid": ({"labels": 5, "classes": 2}, "fedsem,per_client"),
    "class_pairs": ({"labels": 4}, "fedsem,per_client"),
    "dealt": ({}, "fedsem,per_client"),
    "server": ({}, "semifl,server"),
    "coarse": ({}, "fedmt,coarse"),
    "sets": ({"sets": 3}, "fedul,sets"),
    "mixed": ({}, "mixed,mixed"),
    "planned": ({"labels": 30}, "fedsem,per_client"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", RULES)
def test_of_every_rule_of_supervision(name):
    options, argument = RULES[name]
    config = presets.source("digits", argument, rounds=2)
    if config.supervision.name != name:
        config.supervision.name = name
        config.supervision.labels = None
    for option, value in options.items():
        config.supervision[option] = value
    if name == "dealt":
        config.partition.name = "paired_dirichlet"
        config.partition.alpha = 0.5
        config.partition.labels_per_class = 2
        config.partition.num_clients = 6
        config.data.test_clients = 0
        config.data.test_fraction = 0.2
        config.federated.cohort_size = None
    assert_hidden_labels_do_not_matter(config)


def test_no_rule_is_forgotten():
    """With "none" and "given" nothing is hidden: labels that are not there are of the sources
    above.
    """
    assert set(SUPERVISIONS) == {*RULES, "none", "given"}
