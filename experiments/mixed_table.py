"""A federation of mixed supervision against each of its kinds of clients alone.

    python experiments/mixed_table.py                                        # digits, 5 seeds
    python experiments/mixed_table.py --config mnist_mixed --set data.name=npz data.path=mnist.npz rounds=40

Rows are the variants of configs/digits_mixed.py or configs/mnist_mixed.py: all clients together;
the clients with class labels alone, which is what is left when those without proper labels are
dropped; the same with all others as unlabelled clients (FedAvg+XCLP); the clients with coarse
labels, and those with sets, alone. Leaves mixed_table.md and mixed_table.csv in the output folder.
Measured result: docs/methods/mixed.md.
"""

import argparse
import time

import numpy as np
from tables import facts, leave, markdown, parser_of, spread, train_seeds

from fedjax_ssl import config as configs
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.presets import MIXED_VARIANTS

ROWS = {
    "mixed": "mixed: channels and propagated labels",
    "channels": "mixed: channels alone",
    "labels": "class labels alone, others dropped (FedAvg)",
    "labels_xclp": "class labels, others unlabelled (FedAvg+XCLP)",
    "coarse": "coarse labels alone",
    "sets": "sets alone (FedUL)",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs the variants and writes the files.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    seeds = list(range(options.seeds))
    begin = time.perf_counter()
    accuracy: dict[str, np.ndarray] = {}
    for variant in options.variants:
        started = time.perf_counter()
        settings = [tuple(setting.split("=", 1)) for setting in options.set]
        config = configs.load(f"{options.config}:{variant}", settings)
        config.eval_every = config.rounds
        if "warmup_rounds" in config.method and config.method.warmup_rounds:
            config.method.warmup_rounds = max(config.rounds // 2, 1)
            config.eval_every = config.method.warmup_rounds
        _, metrics = train_seeds(config, seeds)
        accuracy[variant] = metrics["test_accuracy"][:, -1]
        print(
            f"{ROWS[variant]}: {spread(accuracy[variant])} % ({time.perf_counter() - started:.0f} "
            "s)",
            flush=True,
        )
    notes = facts(time.perf_counter() - begin, options.seeds, config.rounds)
    rows = [
        (variant, seed, f"{accuracy[variant][seed]:.6f}") for variant in accuracy for seed in seeds
    ]
    header = ["variant", "seed", "test_accuracy"]
    print(leave(options, "mixed_table", [table(accuracy)], notes, header, rows))


def table(accuracy: dict[str, np.ndarray]) -> str:
    """Test accuracy of every variant, and how much the first one gains over it with the same
    seed.
    """
    first = next(iter(accuracy))
    rows = [
        [
            ROWS[variant],
            spread(values),
            "" if variant == first else spread(accuracy[first] - values, sign="+"),
        ]
        for variant, values in accuracy.items()
    ]
    return markdown(["clients", "test accuracy, %", f"gain of {first}, points"], rows)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, "mixed_table", 5)
    parser.add_argument("--config", choices=["digits_mixed", "mnist_mixed"], default="digits_mixed")
    parser.add_argument(
        "--variants", nargs="+", choices=MIXED_VARIANTS, default=list(ROWS), metavar="NAME"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of the config"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
