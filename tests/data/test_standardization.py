import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import load_config, load_run, presets, run
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import (
    AUGMENTATIONS,
    Dataset,
    Split,
    for_prediction,
    load,
    normalizer,
    standardization,
    standardized,
)
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.runs.build import load_experiment

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 5, 6, 3), np.uint8)
LABELS = np.arange(12) % 3


def toy(inputs=IMAGES, **fields):
    return Dataset(
        "toy", Split(inputs, LABELS), Split(inputs[:4] // 2, LABELS[:4]), ("a", "b", "c"), **fields
    )


@pytest.mark.parametrize("block", [1, 400, 1 << 22])
def test_images_get_statistics_per_channel_of_the_training_examples(block, monkeypatch):
    monkeypatch.setattr(standardization, "BLOCK_VALUES", block)
    for inputs in (IMAGES, IMAGES[..., :1]):
        dataset, said = standardized(toy(inputs))
        np.testing.assert_allclose(dataset.mean, (inputs / 255).mean(axis=(0, 1, 2)), rtol=1e-13)
        np.testing.assert_allclose(dataset.std, (inputs / 255).std(axis=(0, 1, 2)), rtol=1e-13)
        assert said.endswith("of the 12 examples of all clients")
        result = np.asarray(normalizer(dataset)(jnp.asarray(inputs)), np.float64)
        np.testing.assert_allclose(result.mean(axis=(0, 1, 2)), 0, atol=1e-6)
        np.testing.assert_allclose(result.std(axis=(0, 1, 2)), 1, rtol=1e-6)


def test_vectors_get_statistics_per_feature():
    features = RNG.normal(3.0, [1.0, 5.0, 0.1, 2.0], (12, 4)).astype(np.float32)
    features[:, 3] = 0.1  # whose float64 mean over 12 is not 0.1 to the last bit
    dataset, said = standardized(toy(features, input_max=2.0))
    np.testing.assert_allclose(
        dataset.mean, features.mean(axis=0, dtype=np.float64) / 2, rtol=1e-13
    )
    np.testing.assert_allclose(
        dataset.std[:3], features[:, :3].std(axis=0, dtype=np.float64) / 2, rtol=1e-13
    )
    assert dataset.std[3] == 1.0
    assert "mean of each feature and deviation of each feature" in said
    result = np.asarray(normalizer(dataset)(jnp.asarray(features)))
    np.testing.assert_allclose(result.std(axis=0), [1, 1, 1, 0], atol=1e-5)
    assert standardized(toy(np.full((12, 5, 6, 1), 7, np.uint8)))[0].std == (1.0,)


def test_who_is_counted():
    """Examples of the test split are not; those without a label, and those that a seed holds
    out, are.
    """
    dataset = toy()
    other_test = dataclasses.replace(dataset, test=Split(255 - IMAGES[:4], LABELS[:4]))
    unlabelled = dataclasses.replace(dataset, train=Split(IMAGES, np.full(12, -1)))
    expected = standardized(dataset)[0]
    for changed in (other_test, unlabelled):
        assert standardized(changed)[0].mean == expected.mean
        assert standardized(changed)[0].std == expected.std


def test_known_statistics_come_first():
    known = toy(mean=(0.5,), std=(0.25,))
    dataset, said = standardized(known)
    assert (dataset.mean, dataset.std) == ((0.5,), (0.25,))
    assert (
        said
        == "inputs are standardized by mean 0.5 and deviation 0.25 that belong to dataset 'toy'"
    )
    assert standardized(known, "dataset")[0].mean == (0.5,)
    assert standardized(known, "train")[0].mean == standardized(toy())[0].mean
    for by in ("none", "auto"):
        dataset, said = standardized(toy(mean=(0.0,), std=(1.0,)), by)
        assert said == "inputs are divided by 255 and not standardized"
        np.testing.assert_allclose(
            normalizer(dataset)(jnp.asarray(IMAGES)), IMAGES / 255.0, rtol=1e-6
        )
    assert (standardized(known, "none")[0].mean, standardized(known, "none")[0].std) == (None, None)


def test_given_statistics_replace_the_datasets():
    """CIFAR-10's other deviations, those of SemiFL and FedUL, are given like this."""
    dataset, said = standardized(toy(mean=(0.5,), std=(0.25,)), std=(0.2023, 0.1994, 0.2010))
    assert (dataset.mean, dataset.std) == ((0.5,), (0.2023, 0.1994, 0.2010))
    assert (
        said == "inputs are standardized by mean 0.5 and deviation 0.2023, 0.1994, 0.201 as given"
    )


def test_inputs_that_are_predicted_may_have_statistics_of_their_own():
    """SAGE's code trains with one deviation of CIFAR-10 and tests with another one."""
    known = toy(mean=(0.5,), std=(0.25,))
    assert for_prediction(known) == (known, "")
    dataset, said = for_prediction(known, std=(0.2023, 0.1994, 0.2010))
    assert (dataset.mean, dataset.std) == ((0.5,), (0.2023, 0.1994, 0.2010))
    assert said == "; where they are predicted, by mean 0.5 and deviation 0.2023, 0.1994, 0.201"
    with pytest.raises(
        ValueError, match=r"of test_mean and test_std: .* mean has 2 values; allowed are 1 and 3"
    ):
        for_prediction(known, mean=(0.1, 0.2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "tests"}, "standardize is 'tests'; allowed: auto, dataset, train, client, none"),
        (
            {"by": "dataset"},
            "dataset 'toy' has no mean and deviation of its own; use 'train' for those of its "
            "train",
        ),
        (
            {"by": "train", "mean": (0.1,)},
            "mean or std is given, which standardize='train' does not use",
        ),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        standardized(toy(), **arguments)


def test_npz_and_embedded_sources(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, inputs=IMAGES, labels=LABELS)
    assert standardized(load("npz", path=path))[0].mean == standardized(toy())[0].mean
    assert standardized(load("digits"))[1] == "inputs are divided by 16 and not standardized"


def test_normalizer_of_a_dataset():
    mean = (0.5, 0.4, 0.3)
    std = (0.2, 0.25, 0.5)
    expected = (IMAGES.astype(np.float64) / 16 - np.array(mean)) / np.array(std)
    result = jax.jit(normalizer(toy(input_max=16.0, mean=mean, std=std)))(jnp.asarray(IMAGES))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("block", [1, 400, 1 << 22])
def test_the_client_that_is_left_out_does_not_count(block, monkeypatch):
    monkeypatch.setattr(standardization, "BLOCK_VALUES", block)
    clients = np.repeat([4, 0, 2], 4)
    dataset = Dataset(
        "toy",
        Split(IMAGES, LABELS, clients),
        None,
        ("a", "b", "c"),
        client_names=("n", "none", "s", "none", "e"),
    )
    others = IMAGES[clients != 2] / 255
    for left_out in (1, "s"):
        found, said = standardized(dataset, left_out=left_out)
        np.testing.assert_allclose(found.mean, others.mean(axis=(0, 1, 2)), rtol=1e-13)
        np.testing.assert_allclose(found.std, others.std(axis=(0, 1, 2)), rtol=1e-13)
        assert said.endswith("of the 8 examples of all clients but 's'")
    whole = standardized(dataset)[0].mean
    assert all(
        standardized(dataset, left_out=other)[0].mean == whole for other in ("nobody", 7, None)
    )


def test_a_run_leaves_the_client_out_of_its_statistics(tmp_path):
    np.savez(tmp_path / "x.npz", inputs=IMAGES, labels=LABELS, client=np.arange(12) // 4)
    config = presets.source("npz", "fedavg")
    config.data.path = str(tmp_path / "x.npz")
    config.data.left_out_client = 2
    experiment = load_experiment(config)
    np.testing.assert_allclose(
        experiment.dataset.mean, (IMAGES[:8] / 255).mean(axis=(0, 1, 2)), rtol=1e-13
    )
    assert "but '2'" in experiment.standardization


def hospitals(**fields):
    """Three clients: of eight examples, of three that agree in the second feature, and of one."""
    x = RNG.normal(3.0, 2.0, (12, 2)).astype(np.float32)
    client = np.array([0] * 8 + [1] * 3 + [2], np.int32)
    x[8:11, 1] = 5.0
    test = Split(x[[0, 9, 11]] + 1, LABELS[:3], np.array([0, 1, 2]))
    return Dataset(
        "toy",
        Split(x, LABELS, client),
        test,
        ("a", "b", "c"),
        ("A", "B", "C"),
        input_max=1.0,
        **fields,
    )


def test_every_client_by_its_own_training_examples():
    raw = hospitals()
    dataset, said = standardized(raw, "client")
    x = np.asarray(raw.train.x, np.float64)
    own = raw.train.client
    mean = x[:8].mean(axis=0)
    std = x[:8].std(axis=0, ddof=1)
    np.testing.assert_allclose(dataset.train.x[:8], (x[:8] - mean) / std, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x[0], (raw.test.x[0] - mean) / std, rtol=1e-5)
    # constant, so that its deviation is 1
    np.testing.assert_allclose(dataset.test.x[1, 1], 1.0, atol=1e-6)
    np.testing.assert_allclose(dataset.train.x[own == 2], 0.0)
    np.testing.assert_allclose(dataset.test.x[2], 1.0, atol=1e-6)
    assert said.endswith("the deviation is 1: 'B' (constant: feature 1), 'C' (one example)")
    np.testing.assert_array_equal(normalizer(dataset)(dataset.train.x), dataset.train.x)
    images = dataclasses.replace(toy(), train=Split(IMAGES, LABELS, np.arange(12) % 2), test=None)
    result, _ = standardized(images, "client")
    scaled = IMAGES[::2] / 255
    expected = (scaled - scaled.mean(axis=(0, 1, 2))) / scaled.std(axis=(0, 1, 2), ddof=1)
    np.testing.assert_allclose(normalizer(result)(result.train.x[::2]), expected, atol=1e-5)


def test_clients_that_have_no_statistics_are_refused():
    raw = hospitals()
    for changed in (
        toy(),
        dataclasses.replace(raw, test=Split(raw.test.x, LABELS[:3])),
        dataclasses.replace(raw, train=Split(raw.train.x[:11], LABELS[:11], raw.train.client[:11])),
    ):
        with pytest.raises(
            ValueError, match=r"standardize is 'client', but .* use standardize='train'"
        ):
            standardized(changed, "client")
    with pytest.raises(ValueError, match="which standardize='client' does not use"):
        standardized(raw, "client", mean=(1.0,))


@pytest.mark.parametrize(
    "fields",
    [
        {"partition.name": "iid", "partition.num_clients": 3},
        {"data.test_std": (2.0,)},
    ],
)
def test_settings_that_do_not_go_with_clients_are_refused(fields):
    config = presets.source("digits", "fedavg")
    config.data.standardize = "client"
    for name, value in fields.items():
        section, _, field = name.partition(".")
        config[section][field] = value
    with pytest.raises(
        ConfigError, match=r"standardize is 'client', but .*use standardize='train'"
    ):
        load_experiment(config)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_every_augmentation_gets_images_of_clients_in_the_range_of_stored_values(name):
    dark = IMAGES // 2
    bright = 255 - dark
    train = Split(np.concatenate([dark, bright]), np.tile(LABELS, 2), np.repeat([0, 1], 12))
    images, _ = standardized(Dataset("toy", train, None, ("a", "b", "c")), "client")
    assert 0 <= images.train.x.min() < images.train.x.max() <= 255
    stored = {"input_max": 255.0} if AUGMENTATIONS.takes(name, "input_max") else {}
    small = {"pixels": 1} if AUGMENTATIONS.takes(name, "pixels") else {}
    augment = AUGMENTATIONS.build(name, **stored, **small)
    views = normalizer(images)(augment(jax.random.key(0), jnp.asarray(images.train.x)))
    # Neither client becomes black or white as a whole.
    assert np.abs(views.reshape(2, -1).mean(axis=1)).max() < 3


@pytest.mark.thorough
@pytest.mark.promise
def test_a_trained_model_standardizes_by_the_client_that_is_named(tmp_path):
    settings = {
        "data.standardize": "client",
        "data.test_clients": 0,
        "data.client_test_fraction": 0.2,
    }
    config = load_config(
        "digits_fedavg", {"rounds": 1, "eval_every": 1, "optimizer.local_epochs": 1, **settings}
    )
    run(config, tmp_path, quiet=True)
    model = load_run(tmp_path)
    raw = load("digits").train
    one = load_experiment(config).dataset.train
    rows = raw.client == 3
    inputs = raw.x[rows].astype(np.float32)
    state = model._state  # the run's own prediction, of inputs as it has them
    expected = np.exp(model._method.predict(state, one.x[rows]))
    np.testing.assert_allclose(model.predict(inputs, client="writer 3"), expected, atol=1e-5)
    assert model.embed(inputs, client="writer 3").shape[0] == rows.sum()
    own = (inputs - inputs.mean()) / inputs.std(ddof=1)
    common = model._description["inputs"]
    brought = 16 * (own * common["std"] + np.asarray(common["mean"])).astype(np.float32)
    expected = np.exp(model._method.predict(state, brought))
    for client in (None, "writer 99"):
        with pytest.warns(ConfigNote, match="as those of a new site$"):
            np.testing.assert_allclose(model.predict(inputs, client=client), expected, atol=1e-4)
    mixed = raw.x[[0, -1]].astype(np.float32)
    names = [f"writer {raw.client[row]}" for row in (0, -1)]
    by_row = model.predict(mixed, client=names)
    for row, name in enumerate(names):
        alone = model.predict(mixed[[row]], client=name)
        np.testing.assert_allclose(by_row[[row]], alone, atol=1e-5)
    with pytest.warns(ConfigNote, match="of these 9 examples alone.*so few say little"):
        model.add_client("writer 99", inputs[:9])
    model.predict(inputs[:1], client="writer 99")
