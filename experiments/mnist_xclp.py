"""MNIST: one-shot label propagation on raw pixels. XCLP's graph of all clients against a graph per
client.

    python experiments/mnist_xclp.py --data mnist.npz

100 clients with 600 images each, dealt iid, 10 labels per client drawn at random (seeds 0, 1, ...).
Nothing is trained: images are the features. The file is Keras' mnist.npz or one of the form in
docs/your_data.md. Prints a Markdown table of the accuracy on the unlabelled images, mean and standard
deviation over seeds. The paper does not have this experiment.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import data, folder, graph
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.keys import named_key


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="npz file")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--labels", type=int, default=10, help="labels per client")
    parser.add_argument("--bits", type=int, default=4096)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    use_compilation_cache()
    dataset = data.load("npz", path=arguments.data)

    accuracies: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(arguments.seeds):
        key = jax.random.key(seed)
        federation = data.federate(
            key,
            dataset,
            partition="iid",
            num_clients=arguments.clients,
            supervision="per_client",
            supervision_options={"labels": arguments.labels},
        )
        for name, method in _methods(arguments, dataset.num_classes).items():
            begin = time.perf_counter()
            predicted = np.asarray(method(named_key(key, "projections"), federation))
            seconds.setdefault(name, []).append(time.perf_counter() - begin)
            accuracies.setdefault(name, []).append(_accuracy(federation, predicted))
            print(
                f"seed {seed}, {name}: {accuracies[name][-1]:.2%}, {seconds[name][-1]:.1f} s",
                flush=True,
            )

    print(
        "\n| graph | accuracy on unlabelled images, % | seconds (first seed includes compiling) "
        "|\n|---|---|---|"
    )
    for name, values in accuracies.items():
        spread = np.std(values, ddof=1) if len(values) > 1 else np.nan
        times = ", ".join(f"{value:.1f}" for value in seconds[name])
        print(f"| {name} | {100 * np.mean(values):.2f} ± {100 * spread:.2f} | {times} |")
    print(f"\n{folder.device_description()}; {folder.versions()}; {arguments}")


def _methods(arguments: argparse.Namespace, num_classes: int) -> dict:
    """Name -> (key, federation) -> predicted labels [C, n]; paper settings and those of the
    authors' code.
    """
    changes = {"num_neighbors": arguments.neighbors, "num_bits": arguments.bits}
    paper = replace(graph.PAPER, **changes)
    code = replace(graph.CODE, **changes)
    return {
        "per client, paper": partial(_per_client, num_classes=num_classes, settings=paper),
        "per client, code": partial(_per_client, num_classes=num_classes, settings=code),
        "all clients (XCLP), paper": partial(_all_clients, num_classes=num_classes, settings=paper),
        "all clients (XCLP), code": partial(_all_clients, num_classes=num_classes, settings=code),
    }


def _gather(federation: data.FederatedData) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pixels [C, n, d], observed labels [C, n], which entries are examples [C, n]."""
    real = jnp.arange(federation.max_examples) < federation.num_examples[:, None]
    pixels = federation.inputs[federation.index].reshape(*real.shape, -1).astype(jnp.float32)
    return pixels, jnp.where(real, federation.observed[federation.index], -1), real


def _all_clients(
    key: jax.Array, federation: data.FederatedData, num_classes: int, settings: graph.GraphSettings
) -> jax.Array:
    pixels, observed, real = _gather(federation)
    rows = pixels.reshape(real.size, -1)
    result = graph.label(
        rows, observed.reshape(-1), num_classes, settings, valid=real.reshape(-1), key=key
    )
    return result.labels.reshape(real.shape)


def _per_client(
    key: jax.Array, federation: data.FederatedData, num_classes: int, settings: graph.GraphSettings
) -> jax.Array:

    @jax.jit
    def one_client(client: tuple) -> jax.Array:
        pixels, observed, real = client
        owner = jnp.zeros_like(observed)
        return graph.label(
            pixels, observed, num_classes, settings, valid=real, clients=owner
        ).labels

    return jax.lax.map(one_client, _gather(federation))


def _accuracy(federation: data.FederatedData, predicted: np.ndarray) -> float:
    index = np.asarray(federation.index)
    sizes = np.asarray(federation.num_examples)
    unlabelled = (np.arange(index.shape[1]) < sizes[:, None]) & (
        np.asarray(federation.observed)[index] < 0
    )
    return float(np.mean((predicted == np.asarray(federation.labels)[index])[unlabelled]))


if __name__ == "__main__":
    main()
