"""One-shot XCLP on the embedded digits with its protocols: `python -m fedjax_ssl.secure [--drop
3@mask,5@sums]`.

A fifth of the digits of 14 writers is new; a tenth of the others has labels
(configs/digits_predict.py, raw pixels).
"""

import argparse
import hashlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import data, folder, graph, presets, runs, secure
from fedjax_ssl.command_line import USER_ERRORS, notes_instead_of_warnings, use_compilation_cache
from fedjax_ssl.prediction import graphs
from fedjax_ssl.secure import SERVER, Protocols, party_name

_PHASES = ("keys", "seed", "hamming", "columns", "sums")


def main(arguments: list[str]) -> int:
    """Run the protocols, print their cost, and compare labels and confidences with those of level
    "ideal".

    Returns:
        0; 1 if labels or confidences differ; 2 for a mistake of the user, after one message on
        standard error.
    """
    options = _parser().parse_args(arguments[1:])
    use_compilation_cache()
    try:
        with notes_instead_of_warnings():
            return _run(options, _drops(options.drop))
    except (*USER_ERRORS, ValueError, secure.MissingExtra) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_ssl.secure",
        description="One-shot XCLP on digits with its cryptographic protocols.",
        allow_abbrev=False,
    )
    parser.add_argument("--level", default="real", choices=secure.LEVELS)
    parser.add_argument(
        "--hamming", default="transfer", choices=secure.HAMMING, help="protocol of the distances"
    )
    parser.add_argument("--bits", type=int, default=1024, help="bits of a code (1024)")
    parser.add_argument(
        "--clients", type=int, default=14, help="writers that take part, 3 to 14 (14)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the labels and the codes (0)"
    )
    parser.add_argument(
        "--drop",
        default="",
        help=f"clients that vanish, as 3@mask,5@sums; at {', '.join(secure.DROPS)}",
    )
    parser.add_argument(
        "--recovery",
        action="store_true",
        help="Shamir mode: no restart when a client vanishes in a sum",
    )
    parser.add_argument("--key-bits", type=int, default=2048, help="of Paillier's modulus (2048)")
    return parser


def _drops(text: str) -> dict[int, str]:
    drops = {}
    for part in filter(None, text.split(",")):
        client, _, phase = part.partition("@")
        if not client.isdigit() or phase not in secure.DROPS:
            raise ValueError(
                f"--drop has {part!r}; it must be like 3@mask, at one of: {', '.join(secure.DROPS)}"
            )
        drops[int(client)] = phase
    return drops


def _run(options: argparse.Namespace, drops: dict[int, str]) -> int:
    config = presets.one_shot("inputs", rounds=0)
    config.seed = options.seed
    loaded = runs.load_experiment(config)
    key = jax.random.key(options.seed)
    federation = runs.federate(loaded, key)
    if not 3 <= options.clients <= federation.num_clients:
        raise ValueError(f"--clients is {options.clients}; it must be 3..{federation.num_clients}")
    unknown = [client for client in drops if client >= options.clients]
    if unknown:
        raise ValueError(
            f"--drop names client {unknown[0]}; there are clients 0..{options.clients - 1}"
        )
    seed = hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes()).digest()
    settings: dict[str, Any] = dict(
        hamming=options.hamming,
        key_bits=options.key_bits,
        recovery=options.recovery,
        seed=seed,
        drop=drops,
    )
    begin = time.perf_counter()
    chosen = secure.protocols(options.level, options.bits, **settings)
    found = _predict(federation, key, options, chosen)
    seconds = time.perf_counter() - begin
    counted = secure.protocols("accounted", options.bits, **settings)
    _predict(federation, key, options, counted)
    ideal = _predict(federation, key, options, secure.protocols("ideal", options.bits, **settings))
    _print_costs(chosen, counted, options.clients)
    versions = ", ".join(
        map(" ".join, folder.versions(("cryptography", "PyNaCl", "gmpy2", "numpy")).items())
    )
    print(f"\n{seconds:.1f} s in all at level {options.level!r}, {versions}")
    for party, error in getattr(chosen, "refused", []):
        print(f"refused by {party_name(party)}: {error}")
    return _print_labels(federation, found, ideal, options)


def _predict(
    federation: data.FederatedData,
    key: jax.Array,
    options: argparse.Namespace,
    protocols: Protocols,
) -> graphs.Predictions:
    points = graphs.points_of(federation)
    settings = graph.GraphSettings(num_bits=options.bits, num_neighbors=5)

    def embed(inputs: jax.Array) -> jax.Array:
        return inputs.reshape(inputs.shape[0], -1).astype(jnp.result_type(float))

    label = graphs.by_codes(key, federation, points, embed, [settings], exchange=protocols.exchange)
    everybody = jnp.arange(federation.num_clients + federation.num_new_clients, dtype=jnp.int32)
    graph_of = jnp.where(everybody < options.clients, 0, -1)
    return graphs.predict_with_graphs(federation, points, label, graph_of, 1)[0]


def _print_costs(chosen: Protocols, counted: Protocols, num_clients: int) -> None:
    print(f"{'phase':10}{'messages':>10}{'bytes':>16}{'by the formulas':>18}{'seconds':>10}")
    for phase in _PHASES:
        sent = sum(count for place, count in chosen.traffic.messages.items() if place[0] == phase)
        seconds = sum(some for place, some in chosen.seconds.items() if place[0] == phase)
        sizes = f"{chosen.traffic.total(phase):>16,}{counted.traffic.total(phase):>18,}"
        print(f"{phase:10}{sent:>10,}{sizes}{seconds:>10.3f}")
    print(
        f"\n{'party':12}{'sent bytes':>16}{'received bytes':>16}",
        *(f"{phase + ' s':>11}" for phase in _PHASES),
        sep="",
    )
    for party in [*range(num_clients), SERVER]:
        sizes = (
            f"{chosen.traffic.total(sender=party):>16,}{chosen.traffic.total(receiver=party):>16,}"
        )
        print(
            f"{party_name(party):12}{sizes}",
            *(f"{chosen.seconds[phase, party]:>11.3f}" for phase in _PHASES),
            sep="",
        )


def _print_labels(
    federation: data.FederatedData,
    found: graphs.Predictions,
    ideal: graphs.Predictions,
    options: argparse.Namespace,
) -> int:
    client = np.asarray(federation.test_client)
    mine = (client >= 0) & (client < options.clients)
    truth = np.asarray(federation.labels)[np.asarray(federation.test_index)]
    labels = np.asarray(found.labels)
    right = np.mean(labels[mine] == truth[mine])
    print(
        f"{mine.sum()} new digits, {np.mean(labels[mine] >= 0):.1%} of them labelled, {right:.2%} "
        "of all rightly"
    )
    equal = np.array_equal(labels, ideal.labels) and np.array_equal(
        found.confidence, ideal.confidence
    )
    print(f"labels and confidences equal those of level 'ideal': {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
