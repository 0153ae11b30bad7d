"""The method trains on a small federation: `pytest my_study`."""

from pathlib import Path

import jax

from fedjax_ssl.config import load
from fedjax_ssl.train import make_train

CONFIG = str(Path(__file__).parent / "my_study.py")


def test_the_method_learns() -> None:
    """Six rounds of the study."""
    config = load(CONFIG, [("rounds", 6), ("eval_every", 3), ("method.warmup_rounds", 3)])
    _, metrics = make_train(config)(jax.random.key(0))
    accuracy = metrics["test_accuracy"]
    assert accuracy[-1] > 0.3, "ten classes: chance is a tenth"
    assert metrics["loss"][-1] < metrics["loss"][0]
