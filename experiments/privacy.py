"""Accuracy over epsilon: four methods with few labels, and DP-SGD at four hospitals.

    python experiments/privacy.py --seeds 5                            # the digits at 100 clients
    python experiments/privacy.py --seeds 5 --path FOLDER              # and the hospitals
    python experiments/privacy.py --seeds 5 --path FOLDER --only dp_sgd

FOLDER holds UCI's four files (docs/datasets.md). Test accuracy after the last round in percent,
mean and sample deviation over seeds. A method of which more leaves a client than a sum has the
reason in place of a number.
"""

import time
import warnings
from typing import Any

from tables import facts, markdown, parser_of, spread, train_seeds

import fedjax_ssl as fs
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.config import ConfigError, ConfigNote

EPSILONS = ("1", "8", "none")
CURVE = ("0.5", "1", "2", "8", "none")
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method.name": "fedavg"},
    "XCLP": {"method.name": "xclp", "method.warmup_rounds": 5},
    "FixMatch": {"method.name": "fixmatch"},
    "FedMatch": {
        "method.name": "fedmatch",
        "method.l2_weight": 0.03,
        "method.lr_schedule": "none",
    },
}
WHY = {"XCLP": "refused: codes leave the client", "FedMatch": "refused: helpers' models leave it"}
HEART = {
    "rounds": 10,
    "optimizer.learning_rate": 0.1,
    "data.standardize": "client",
}
HEART_PRIVACY = {"privacy.name": "gaussian", "privacy.delta": 0.1, "privacy.clip": 0.5}
# Round numbers of a textbook, in the order of the 13 features, which say nothing of a patient here.
MEAN = (55.0, 0.5, 130.0, 200.0, 0.5, 140.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5)
STD = (10.0, 0.5, 20.0, 100.0, 0.5, 25.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5)
DP_SGD = {
    "data.standardize": "auto",
    "data.mean": MEAN,
    "data.std": STD,
    "federated.weighting": "uniform",
    "optimizer.learning_rate": 0.005,
}


def main() -> None:
    """Print the tables that are asked for."""
    parser = parser_of(__doc__, "privacy", seeds=5)
    parser.add_argument("--path", help="folder of UCI's four files")
    parser.add_argument("--only", choices=("digits", "hospitals", "dp_sgd"))
    given = parser.parse_args()
    use_compilation_cache()
    warnings.simplefilter("ignore", ConfigNote)
    begin = time.perf_counter()
    seeds = range(given.seeds)
    asked = [given.only] if given.only else ["digits", "hospitals", "dp_sgd"]
    if "digits" in asked:
        print(table("digits, 3 labels at each of 100 clients", digits, seeds), flush=True)
    if "hospitals" in asked and given.path:
        print(table("hospitals, 10 labels at each", hospitals, seeds, given.path), flush=True)
    if "dp_sgd" in asked and given.path:
        cells = [cell(dp_sgd(given.path, epsilon), seeds) for epsilon in CURVE]
        print(markdown(("epsilon of an example", *CURVE), [("FedAvg, DP-SGD", *cells)]))
    print("\n".join(facts(time.perf_counter() - begin, given.seeds)))


def table(title: str, config_of: Any, seeds: range, *more: str) -> str:
    """Train every method with every epsilon; a line each."""
    rows = []
    for name in METHODS:
        cells = []
        for epsilon in EPSILONS:
            try:
                found = cell(config_of(name, epsilon, *more), seeds)
            except ConfigError as error:
                if name not in WHY or epsilon == "none":
                    raise
                print(f"# {error}")
                found = WHY[name]
            cells.append(found)
            print(f"# {title}, {name}, epsilon {epsilon}: {found}", flush=True)
        rows.append((name, *cells))
    return markdown((title, *(f"epsilon {one}" for one in EPSILONS)), rows)


def cell(config: Any, seeds: range) -> str:
    """Train all seeds of a config."""
    return spread(train_seeds(config, seeds)[1]["test_accuracy"][:, -1])


def digits(name: str, epsilon: str) -> Any:
    """Make the config of a cell of the digits."""
    labels = {"supervision.name": "per_client", "supervision.labels": 3}
    settings = _with_epsilon({**labels, **METHODS[name]}, epsilon)
    return fs.load_config(f"digits_private:{epsilon}", settings)


def hospitals(name: str, epsilon: str, path: str) -> Any:
    """Make the config of a cell of the hospitals, where a client is one of four."""
    method = METHODS[name]["method.name"]
    own = {field: value for field, value in METHODS[name].items() if field != "method.name"}
    private = {**HEART_PRIVACY, "privacy.epsilon": float(epsilon)} if epsilon != "none" else {}
    settings = _with_epsilon({**HEART, **own, **private, "data.path": path}, epsilon)
    return fs.load_config(f"fed_heart_disease:{method},10", settings)


def dp_sgd(path: str, epsilon: str) -> Any:
    """Make the config of a point of the curve: FLamby's training, private in its steps."""
    private: dict[str, Any] = {"data.path": path, **DP_SGD}
    if epsilon != "none":
        of_examples = {"name": "dp_sgd", "delta": 1e-3, "epsilon": float(epsilon)}
        private |= {f"privacy.{field}": value for field, value in of_examples.items()}
    return fs.load_config("fed_heart_disease", private)


def _with_epsilon(settings: dict[str, Any], epsilon: str) -> dict[str, Any]:
    """Leave settings of privacy out where there is none, and evaluate once."""
    kept = {
        name: value
        for name, value in settings.items()
        if epsilon != "none" or not name.startswith("privacy.")
    }
    return {"eval_every": 1000, **kept}


if __name__ == "__main__":
    main()
