"""The contract on privacy, over every method, personalization and wrapper: it is refused, or what
predicts, is saved and is evaluated shows nothing of a client but through the sum with its noise.

`make test` reads it off the traced rounds, whose noise is taken for all that is left of a sum;
`make thorough` trains with a noise that nothing survives.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_ssl import methods, models
from fedjax_ssl.contrib.privacy import gaussian
from fedjax_ssl.federated import Method, build
from fedjax_ssl.methods.around import WRAPPERS, personalized
from tests import toy
from tests.methods import cases

KEY = jax.random.key(2)
PRIVATE = gaussian.Gaussian(clip=1.0)
# Settings without which a method would be refused, and others by which a client keeps something.
VARIANTS: dict[str, dict[str, Any]] = {
    "fedrep": {"labels": "class"},
    "compose": {"parts": ("supervised", "moon", "fixmatch"), "fixmatch.threshold": 0.5},
}
NAMES = sorted(methods.available())
WHAT = [
    *NAMES,
    *(f"{name} in another way" for name in sorted(VARIANTS)),
    *(f"fedavg, {one}" for one in sorted({*WRAPPERS} - {"none"})),
    *(f"fixmatch, {one}" for one in sorted({*WRAPPERS} - {"none", "slow_clients"})),
]
# What of a client nothing may depend on. Its rows of `inputs` and `observed` are found by these.
OF_CLIENTS = {"index", "num_labelled", "num_examples", "weak"}
# Pseudo-labels that clients make and keep; the simulation has them at one place.
KEPT_BY_CLIENTS = {"fedsem"}


REFUSED = {  # and by which words
    "alone": "nothing leaves a client",
    "single": "no client of this method trains",
    **dict.fromkeys(("mixed", "xclp"), "codes of their examples"),
    **dict.fromkeys(("cbafed", "fl2", "proxyfl", "sage"), "weights in the average"),
    **dict.fromkeys(
        ("compose", "fedmatch", "fedsiam", "mean_teacher", "protofssl"),
        "what the term '.*' uploads",
    ),
    "fedrep": r"keep layers to themselves \(aux_head\)",
    "fedrep in another way": r"keep layers to themselves \(head\)",
    **dict.fromkeys(("fedavg, asynchronous", "fixmatch, asynchronous"), "before it has noise"),
    **dict.fromkeys(("fedavg, fedbn", "fixmatch, fedbn"), r"to themselves \(normalization\)"),
}


def method_of(what: str, noise: Any) -> tuple[Method, Any]:
    """A private method on its toy federation; refused as a run of it would be."""
    name, _, more = what.partition(", ")
    name, _, other = name.partition(" in ")
    like = toy.weak_federation("labels")
    settings = VARIANTS[name] if other else cases.of(name).settings
    kind = "labels" if other else cases.build(name, like).recipe.needs.kinds[0]
    data = toy.weak_federation(kind)
    options = {"hidden": (8,), **cases.of(name).model}
    if more == "fedbn":
        options |= {"hidden": (32,), "norm": "gn"}
    shape = (toy.NUM_FEATURES,)
    model = models.build("mlp", num_classes=toy.NUM_CLASSES, input_shape=shape, **options)
    setup = toy.setup(data, model=model, augment=toy.jitter, local_epochs=1)
    recipe = methods.recipe(name, setup._replace(rounds=4), **settings)
    recipe = personalized(recipe, more or "none")
    cohorts = gaussian.Sampled(*[data.num_clients] * 3)
    return build(PRIVATE.private(recipe, noise, cohorts)), data


def seen(method: Method, data: Any) -> dict[str, Any]:
    """What others than the clients have after a round, from which the next one begins."""
    state, _ = method.round(KEY, method.init(KEY, data), data)
    network = () if method.network is None else method.network(state, None)
    inputs = np.ones((3, toy.NUM_FEATURES), np.float32)
    return {
        "network": network,
        "predictions": method.predict(state, inputs),
        "state": state._replace(clients=()),
    }


@pytest.mark.parametrize("what", WHAT)
def test_what_predicts_shows_clients_through_the_noisy_sum_alone(what: str, monkeypatch) -> None:
    if what in REFUSED:
        with pytest.raises(ValueError, match=f"'gaussian' protects the sum.*{REFUSED[what]}"):
            method_of(what, 1.0)
        return
    monkeypatch.setattr(
        gaussian, "with_noise", lambda key, total, deviation: jax.tree.map(jnp.zeros_like, total)
    )
    method, data = method_of(what, 1.0)

    def after(data: Any) -> dict[str, Any]:
        found = seen(method, data)
        if what in KEPT_BY_CLIENTS:
            found["state"] = found["state"]._replace(terms={})
        return found

    traced = jax.make_jaxpr(after)(data)
    _, used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    names = [path[0].name for path, _ in jax.tree.leaves_with_path(data)]
    assert not {name for name, one in zip(names, used, strict=True) if one} & OF_CLIENTS


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(one, marks=() if one == "fedavg" else pytest.mark.thorough)
        for one in WHAT
        if one not in REFUSED
    ],
)
def test_no_number_of_what_predicts_survives_a_huge_noise(what: str) -> None:
    """But for what stays as the run began, such as a second head that only clients use."""

    @jax.jit
    def networks(noise: Any) -> tuple[Any, Any]:
        method, data = method_of(what, noise)
        start = method.init(KEY, data)
        end, _ = method.round(KEY, start, data)
        assert method.network is not None
        return method.network(start, None), method.network(end, None)

    start, plain = networks(0.0)
    _, noisy = networks(1e6)
    for first, one, other in zip(*map(jax.tree.leaves, (start, plain, noisy)), strict=True):
        away = np.abs(np.asarray(one) - np.asarray(other))
        constant = np.array_equal(first, one) and np.array_equal(first, other)
        assert constant or not np.median(away) < 1e3
