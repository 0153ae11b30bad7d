"""What it costs to show less: accuracy of one-shot XCLP on digits under knobs, `python
experiments/secure_knobs.py`.

The set-up of `python -m fedjax_ssl.secure`: 14 writers, raw pixels, a tenth of the known digits
labelled; means over seeds. The last column is what a knob leaves of attack 1 of docs/secure.md on
the same points: the mean cosine between the directions of the others' digits and those that the
server finds together with the writer who has most digits.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import presets, runs
from fedjax_ssl.graph import IDEAL, Exchange, GraphSettings
from fedjax_ssl.prediction import graphs

BITS = 1024
KNOBS = [("bits", bits) for bits in (64, 128, 256, 512, 1024)]
KNOBS += [("flipped bits", share) for share in (0.05, 0.1, 0.2)]
KNOBS += [("noise on scores", scale) for scale in (0.01, 0.1, 1.0)]
KNOBS += [("rounded columns", bits) for bits in (8, 4, 2)]


def federation_of(seed):
    """The digits, split as by the command."""
    config = presets.one_shot("inputs", rounds=0)
    config.seed = seed
    return runs.federate(runs.load_experiment(config), jax.random.key(seed))


def exchange_of(knob, value, random, seen):
    """The plain exchange with a knob turned; `seen` gets the distances that the server sees."""
    flips = {}

    def flipped(client, codes):
        if knob != "flipped bits":
            return codes
        if client not in flips:
            bits = random.random((*codes.shape, 32)) < value
            flips[client] = np.packbits(bits, axis=-1, bitorder="little").view("<u4")[..., 0]
        return codes ^ flips[client]

    def distances(a, b, codes_a, codes_b):
        seen[a, b] = IDEAL.distances(a, b, flipped(a, codes_a), flipped(b, codes_b))
        return seen[a, b]

    def row_sums(shares, clients):
        total = IDEAL.row_sums(shares, clients)
        if knob != "noise on scores":
            return total
        noisy = total * np.exp(value * random.standard_normal(total.shape))
        return np.minimum(noisy, 2**32 - 1).astype(np.uint32)

    def columns(given):
        if knob != "rounded columns":
            return given
        return {
            client: np.round(some * 2.0**value).astype(some.dtype) / some.dtype.type(2**value)
            for client, some in given.items()
        }

    return Exchange(distances, row_sums, columns=columns)


def measure(federation, seed, knob, value):
    """(accuracy, cosine of attack 1)."""
    seen = {}
    bits = value if knob == "bits" else BITS
    points = graphs.points_of(federation)
    settings = GraphSettings(num_bits=bits, num_neighbors=5)

    def embed(inputs):
        return inputs.reshape(inputs.shape[0], -1).astype(jnp.result_type(float))

    exchange = exchange_of(knob, value, np.random.default_rng(seed), seen)
    label = graphs.by_codes(
        jax.random.key(seed), federation, points, embed, [settings], exchange=exchange
    )
    graph_of = jnp.zeros(federation.num_clients + federation.num_new_clients, jnp.int32)
    found = graphs.predict_with_graphs(federation, points, label, graph_of, 1)[0]
    mine = np.asarray(federation.test_client) >= 0
    truth = np.asarray(federation.labels)[np.asarray(federation.test_index)]
    accuracy = np.mean(np.asarray(found.labels)[mine] == truth[mine])
    return accuracy, attack(
        np.asarray(embed(federation.inputs))[np.asarray(points.row)],
        np.asarray(points.client),
        seen,
        bits,
    )


def attack(features, client, seen, bits):
    """Attack 1: least squares for the directions of all points of others, from H and the points
    of one client.
    """
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    helper = np.bincount(client).argmax()
    cosines = []
    for other in sorted(set(client.tolist()) - {helper}):
        block = seen[helper, other] if helper < other else seen[other, helper].T
        gram = np.cos(np.pi * block / bits)
        found = np.linalg.lstsq(directions[client == helper], gram, rcond=1e-3)[0].T
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        cosines.append(np.sum(found * directions[client == other], axis=1))
    return float(np.mean(np.concatenate(cosines)))


def main():
    """Prints a row for every knob."""
    parser = argparse.ArgumentParser(
        description="Accuracy under knobs that show less.", allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, default=3, help="that means are taken over (3)")
    seeds = range(parser.parse_args().seeds)
    federations = [federation_of(seed) for seed in seeds]
    print(f"jax {jax.__version__}, numpy {np.__version__}, {len(seeds)} seeds")
    print(f"{'knob':18}{'value':>8}{'accuracy':>11}{'deviation':>11}{'cosine of attack 1':>20}")
    for knob, value in KNOBS:
        rows = np.array([measure(federations[seed], seed, knob, value) for seed in seeds])
        accuracy, cosine = rows.mean(axis=0)
        print(
            f"{knob:18}{value:>8}{accuracy:>11.2%}{rows[:, 0].std():>11.2%}{cosine:>20.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
