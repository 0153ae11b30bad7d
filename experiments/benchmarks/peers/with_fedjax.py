"""fedjax as released: its EMNIST networks and its federated averaging, which draws batches of
its own.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from common import Clock, load

# Removed from JAX after fedjax's last release; only this process sees them.
jax.tree_map = jax.tree_util.tree_map
import fedjax  # noqa: E402


def main() -> None:
    """Trains the plan's clients with as many examples and steps."""
    plan = load(sys.argv[1])
    if plan.images.shape[1:] != (28, 28, 1):
        raise SystemExit("fedjax has no network for this shape")
    clock = Clock(plan)
    create = (
        fedjax.models.emnist.create_logistic_model
        if plan.name == "W2"
        else fedjax.models.emnist.create_conv_model
    )
    model = create(only_digits=plan.num_classes == 10)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(plan.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=plan.batch_size, num_epochs=1, seed=0),
    )
    apply = jax.jit(lambda params, images: model.apply_for_eval(params, {"x": images}).argmax(-1))

    def accuracy() -> float:
        parts = np.split(plan.images, range(500, len(plan.labels), 500))
        return float(
            (
                np.concatenate([apply(state.params, jnp.asarray(part)) for part in parts])
                == plan.labels
            ).mean()
        )

    keys = jax.random.split(jax.random.PRNGKey(0), max(len(clients) for clients in plan.rounds))
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    for clients in plan.rounds:
        rows = [np.concatenate(steps) for steps in clients]
        data = [
            fedjax.ClientDataset({"x": plan.images[mine], "y": plan.labels[mine]}) for mine in rows
        ]
        state, _ = algorithm.apply(state, list(zip(range(len(data)), data, keys, strict=False)))
        jax.block_until_ready(state.params)
        clock.lap(accuracy)
    clock.write()


main()
