"""Digests of what every method trains on the embedded digits, to compare two commits that should
train the same.

    python experiments/benchmarks/digests.py > before.txt        # at one commit
    python experiments/benchmarks/digests.py > after.txt  # at another one, on the same machine
    diff before.txt after.txt

A line per method and per federated optimizer: the first 16 digits of the SHA-256 of all final
parameters. Bits depend on the processor, the number of threads and the version of JAX, so lines
from two machines cannot be compared.
"""

import argparse
import hashlib
import importlib.util
from pathlib import Path

import jax
import numpy as np

from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.train import make_train

CONFIGS = Path(__file__).parents[2] / "configs"
# Name of a line -> config file and its argument, and fields that are changed.
METHODS = {
    "fedavg": ("digits_fedavg", None, {}),
    "xclp": ("digits_xclp", None, {}),
    "per_client_lp": ("digits_per_client_lp", None, {}),
    "network_pseudo_label": ("digits_network_pseudo_label", None, {}),
    "fedsem": ("digits_fedsem", None, {}),
    "fedsiam": ("digits_fedsiam", None, {}),
    "fedul": ("digits_fedul", "10,noniid,fedul", {}),
    "fedpl": ("digits_fedul", "10,iid,fedpl", {"method.mix": "inputs"}),
    "fedllp": ("digits_fedul", "10,iid,fedllp", {}),
    "fedllp_vat": ("digits_fedul", "10,iid,fedllp_vat", {}),
    "single": ("digits_single", None, {}),
    "semifl": ("digits_semifl", None, {}),
    "fedmt (known)": ("digits_fedmt", "20,shape,known", {"method.warm_start": False}),
    "fedmt (estimated)": ("digits_fedmt", "20,parity,estimated", {"method.warm_start": False}),
    "fedtrans": ("digits_fedmt", "20,shape,fedtrans", {"method.coarse_rounds": 1}),
    "protofssl": ("digits_protofssl", None, {}),
    "mixed": ("digits_mixed", None, {}),
    "fixmatch": ("digits_fixmatch", None, {"method.ema_decay": 0.5}),
    "uda": ("digits_uda", None, {}),
    "mixmatch": ("digits_mixmatch", None, {}),
    "mean_teacher": ("digits_mean_teacher", None, {}),
    "vat": ("digits_vat", None, {"method.entropy_weight": 0.1}),
    "pi_model": ("digits_pi_model", None, {}),
    "pseudo_label": ("digits_pseudo_label", "server,20", {}),
    "fedmatch": ("digits_fedmatch", None, {}),
    "cbafed": ("digits_cbafed", None, {}),
    "fl2": ("digits_fl2", None, {}),
    "fedrgd": ("digits_fedrgd", None, {}),
    "fedrep": ("digits_fedrep", None, {}),
    "sage": ("digits_sage", None, {}),
}
OPTIMIZERS = ("fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi")
ROUNDS = 3


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines whose name contains this")
    only = parser.parse_args().only
    use_compilation_cache()
    lines = dict(METHODS)
    for name in OPTIMIZERS:
        lines[f"xclp with {name}"] = (
            "digits_xclp",
            None,
            {"federated.name": name, "federated.cohort_size": 7},
        )
    for name, (file, argument, changes) in lines.items():
        if only in name:
            print(f"{name:24}{digest(file, argument, changes)}", flush=True)


def digest(file: str, argument: str | None, changes: dict[str, object]) -> str:
    """Trains a config for three rounds, the first of them in stage 1 where there are two;
    digests the parameters.
    """
    spec = importlib.util.spec_from_file_location(file, CONFIGS / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(*() if argument is None else (argument,))
    config.update_from_flattened_dict({"rounds": ROUNDS, "eval_every": ROUNDS, **changes})
    if "warmup_rounds" in config.method:
        config.method.warmup_rounds = 1
    if config.optimizer.schedule_rounds is not None:
        config.optimizer.schedule_rounds = ROUNDS
    train = make_train(config)
    key = jax.random.key(config.seed)
    state, _ = jax.jit(train)(key, {}, train.draw(key))
    sha = hashlib.sha256()
    for path, leaf in sorted(
        jax.tree_util.tree_leaves_with_path(state.params), key=lambda entry: str(entry[0])
    ):
        sha.update(str(path).encode() + np.asarray(leaf).tobytes())
    return sha.hexdigest()[:16]


if __name__ == "__main__":
    main()
