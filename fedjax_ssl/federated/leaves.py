"""Messages that leave the clients of a recipe; privacy mechanisms and secure sums must cover
them.
"""

from collections.abc import Sequence

import jax

from fedjax_ssl.federated.contract import AtClient
from fedjax_ssl.federated.recipe import Recipe


def what_leaves(recipe: Recipe) -> dict[str, Sequence[str]]:
    """Return the names of everything that clients send: parts of an `Upload`, and "beside" it."""
    setup = recipe.setup
    network, model_state = jax.eval_shape(setup.model.init, jax.random.key(0))
    reported = setup.federated_optimizer.sends(jax.eval_shape(recipe.groups.split, network)).up
    trainings = [stage.clients for stage in recipe.stages if stage.clients]
    plain = AtClient()
    terms = {}
    for term in (term for one in trainings for term in one.terms):
        what = f"what the term {term.name!r} uploads" + f" ({term.sends})" * bool(term.sends)
        averages = term.client.average is not plain.average
        if averages or term.client.collect is not plain.collect:
            terms[term.name] = what
    weighed = setup.weighting != "uniform" or any(one.weigh is not None for one in trainings)
    return {
        "update": ["updates"],
        "statistics": ["batch statistics"] * bool(jax.tree.leaves(model_state)),
        "optimizer": ["states of optimizers"] * setup.average_optimizer,
        "weight": ["their weights in the average"] * weighed,
        "terms": [terms[name] for name in sorted(terms)],
        "beside": list(recipe.sends),
        "report": ["what the federated optimizer (config.federated.name) reports"] * bool(reported),
    }
