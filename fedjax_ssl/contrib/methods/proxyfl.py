"""ProxyFL: the rows of the classifier are proxies of the classes, at the clients and at the server.

Every client has a few labels. f_W is the model in training and f_g the one that the client
received, frozen, with its running batch statistics; h(x) is a feature of f_W, omega_c row c of its
classifier, A, a and B are parameters beside them that no prediction uses. A local step has B
labelled examples (x, y) and 2 B of all the client's examples u, with weak views a(u) and strong
ones A(u), all in one forward pass of f_W. With q the prediction of f_g for a(u) and p that of f_W,
m = [max p >= tau or max q >= tau], it minimizes

    mean CE(y, f_W(a(x))) + w_u (1/2B sum_u m KL[e(argmax q) || f_W(A(u))] + w_c L_c).

L_c (indecisive categories). Rows i are the labelled, the weak and the strong views, z_i the unit
vector of A h_i + a, w_c that of B omega_c. A row may be of the class argmax q_i where m_i, and of
the classes with q_i(c) > pi(c) elsewhere, pi a prior that the server sends. s_i = z_i w_c for the
one class, or z_i sum_c q_i(c) w_c over the others. Negatives j of i have no such class in common
with it, and z_i z_j >= 1e-6:

    L_c = mean over weak and strong rows of -s_i + log(e^(s_i) + sum_j e^(z_i z_j)).

After a round, with the counts b_k of the last local epoch (labels, and argmax q where m), the
server takes pi <- 0.99 pi + 0.01 sum_k b_k / sum, averages the models, and tunes the averaged rows
Omega of the classifier (global proxy tuning): SGD on the clients' rows omega_kc,

    -log softmax_c(-||omega_kc - Omega_c'|| - delta [c' = c]),

delta the largest distance of an averaged row to its nearest one. A client weighs as many shares as
it has labelled examples and examples.

All is as in the authors' code; where the text differs, docs/methods/others.md says so.

References:
    ProxyFL, CVPR 2026, arXiv 2602.21078, with appendices, and the authors' code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.contrib.methods._proxies import (
    Tuning,
    candidate_classes,
    pooled_prior,
    proxy_contrast,
    tuned_proxies,
)
from fedjax_ssl.contrib.methods._whole_batches import RECOMMENDED as WHOLE_BATCHES
from fedjax_ssl.contrib.methods._whole_batches import steps_per_epoch, whole_batches
from fedjax_ssl.data import FederatedData
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Broadcast,
    ClientResult,
    ForLog,
    PyTree,
    Recipe,
    RoundResult,
    ServerState,
    Setup,
    Step,
    Term,
    Traffic,
    count,
    never,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.guess import (
    Guess,
    Guessing,
    LabelsFrom,
    at_threshold,
    guesses_of,
    labeller,
)
from fedjax_ssl.methods.parts.setting_types import (
    Count,
    CountOrZero,
    Decay,
    Positive,
    Share,
    Weight,
)
from fedjax_ssl.methods.parts.terms import LABELLED, UNLABELLED, augmented_view, supervised_term
from fedjax_ssl.methods.parts.views_and_teachers import strong_view
from fedjax_ssl.models import Model
from fedjax_ssl.objectives import batch_mean, soft_label_divergence
from fedjax_ssl.registry import UsedWith

RECOMMENDED = {"proxyfl": WHOLE_BATCHES}

EITHER: Literal["either"] = "either"  # the received model labels, and either model may be confident
CANDIDATES = "candidates"
TUNING = "proxy_tuning"
PROJECTIONS = "projections"  # parameters added to the network


@checked
@dataclass(frozen=True)
class ProxyFL:
    """Settings of ProxyFL.

    Attributes:
        threshold: tau.
        unlabelled_weight: w_u.
        contrast_weight: w_c; 0: no contrast.
        unlabelled_ratio: unlabelled examples per labelled one in a step.
        labelled_copies: times that a labelled example counts in a client's weight; 2000 in the
            code, by a side effect.
        prior_decay: of the prior by round.
        tuning_epochs: passes over the clients' rows in which the server tunes its own; 0: none. 10
            for 100 classes.
        tuning_rate: its learning rate.
        tuning_batch_size: rows in one of its steps.
        tuning_cap: the most that delta may be.
    """

    threshold: Share = 0.95
    unlabelled_weight: Weight = 1.0
    contrast_weight: Weight = 1.0
    unlabelled_ratio: Count = 2
    labelled_copies: Weight = 1.0
    prior_decay: Annotated[Decay, UsedWith("contrast_weight")] = 0.99
    tuning_epochs: CountOrZero = 100
    tuning_rate: Annotated[Positive, UsedWith("tuning_epochs")] = 0.005
    tuning_batch_size: Annotated[Count, UsedWith("tuning_epochs")] = 4
    tuning_cap: Annotated[Positive, UsedWith("tuning_epochs")] = 100.0


def proxyfl(setup: Setup, settings: ProxyFL) -> Recipe:
    """ProxyFL: unsure examples learn too, from the classes that they may be of; the server tunes
    its classifier by those of the clients.

    A local epoch has as many steps as whole batches of `config.optimizer.batch_size` fit into a
    client's examples; a client with fewer takes none.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, a single class, a network without rows in its head
            or clients that train alone.
    """
    contrasts = not is_zero(settings.contrast_weight)
    tunes = settings.tuning_epochs > 0
    if contrasts:
        setup = with_projections(setup)
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)
    guesses = guesses_of(setup, Guessing(EITHER), settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        guess = guesses(step, step.inputs[weak.name], step.outputs[weak.name].logits)
        learns = step.outputs[strong.name].logits
        targets = jax.nn.one_hot(guess.labels, setup.num_classes, dtype=learns.dtype)
        mask = step.streams[UNLABELLED].mask
        return soft_label_divergence(learns, targets, mask, guess.counted), guess, learns

    unsupervised = guesses.term("pseudo-labels", (weak, strong), loss)
    unsupervised = unsupervised._replace(weight=settings.unlabelled_weight)
    terms: tuple[Term, ...] = (supervised_term(setup), unsupervised)
    if contrasts:
        term = candidates_term(setup, settings.threshold, settings.prior_decay)
        weight = settings.unlabelled_weight * settings.contrast_weight
        terms = (*terms, term._replace(weight=weight))
    if tunes:
        sizes = settings.tuning_rate, settings.tuning_batch_size, settings.tuning_cap
        terms = (*terms, tuning_term(setup, Tuning(settings.tuning_epochs, *sizes)))
    stage = whole_batches(setup, terms, settings.unlabelled_ratio, settings.labelled_copies)
    recipe = Recipe(setup, (stage,))
    if tunes:
        recipe = with_tuning(recipe)
    return with_notes(recipe, tunes) if contrasts or tunes else recipe


class Head(NamedTuple):
    """Layout of the rows of a network's head, one row per class."""

    by_columns: bool  # the weight is stored as [d, K], as in flax, not as [K, d]

    def rows(self, params: PyTree) -> Float[Array, "K d"]:
        """Return the rows.

        Raises:
            ConfigError: the head is not among the trained parameters.
        """
        if "head" not in params:
            raise ConfigError(
                "config.model.train leaves out the layer head, whose rows this method tunes; add "
                "head to config.model.train, or set config.method.tuning_epochs=0"
            )
        kernel = params["head"]["kernel"]
        return kernel.T if self.by_columns else kernel

    def with_rows(self, params: PyTree, rows: Float[Array, "K d"]) -> PyTree:
        """Return the parameters with other rows."""
        kernel = rows.T if self.by_columns else rows
        return {**params, "head": {**params["head"], "kernel": kernel}}


def head_of(setup: Setup) -> Head:
    """Find the rows of the head of the run's network.

    Raises:
        ValueError: its head has no rows, or there is one class.
    """
    params, _ = jax.eval_shape(setup.model.init, jax.random.key(0))
    kernel = params.get("head", {}).get("kernel")
    shape: tuple[int, ...] = () if kernel is None else kernel.shape
    if len(shape) != 2 or setup.num_classes not in shape:
        raise ValueError(
            "proxies are the rows of the network's head, an array head/kernel with a row or a "
            f"column for each of {setup.num_classes} classes, which this network has not: its "
            f"parameters are {', '.join(sorted(params))}; take another network (cnn13's head has "
            "normalized weights)"
        )
    if setup.num_classes < 2:
        raise ValueError("proxies tell classes from each other; there is one class alone")
    return Head(by_columns=shape[0] != setup.num_classes)


def _check_square_head(setup: Setup, shape: tuple[int, ...]) -> None:
    """Raise ValueError if a head with as many features as classes has columns in place of rows,
    because its shape does not tell.

    Args:
        setup: the run.
        shape: shape of one example.
    """
    like, _ = jax.eval_shape(setup.model.init, jax.random.key(0))
    size = like["head"]["kernel"].shape
    if size[0] != size[1]:
        return
    of_weights, of_inputs = jax.random.split(jax.random.key(0))
    params, state = setup.model.init(of_weights)
    rows = jax.random.normal(of_weights, size)
    params = head_of(setup).with_rows(params, rows)
    inputs = jax.random.normal(of_inputs, (2, *shape))
    outputs, _ = setup.model.apply(params, state, inputs, train=False)
    # Between two examples the bias cancels.
    features = outputs.features[0] - outputs.features[1]
    found = outputs.logits[0] - outputs.logits[1]
    off = jnp.linalg.norm(found - rows @ features)
    if off > 0.1 * jnp.linalg.norm(found):  # far above rounding in bfloat16
        raise ValueError(
            f"the head of this network has {len(found)} classes and as many features, and its "
            "scores are not features times the rows of head/kernel; store it as [classes, "
            "features], or take another number of features"
        )


def with_projections(setup: Setup) -> Setup:
    """Return a setup whose network has two maps more, which no prediction uses: z -> A z + a of
    features, w -> B w of rows of the head.

    Raises:
        ValueError: the network's head has no rows.
    """
    model = setup.model
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    if PROJECTIONS in params:
        return setup
    head = head_of(setup)
    size = jax.eval_shape(head.rows, params).shape[1]

    def init(key: Array) -> tuple[PyTree, PyTree]:
        params, state = model.init(key)
        own = head.rows(params)

        def draw(name: str, *shape: int) -> Array:
            bound = size**-0.5
            return jax.random.uniform(named_key(key, name), shape, own.dtype, -bound, bound)

        features = {
            "kernel": draw("features", size, size),
            "bias": draw("features bias", size),
        }
        rows = {"kernel": draw("rows", size, size)}
        return {**params, PROJECTIONS: {"features": features, "rows": rows}}, state

    return setup._replace(model=model._replace(init=init, apply=_ignoring_projections(model)))


def _ignoring_projections(model: Model) -> Callable:
    def apply(params: PyTree, *given: PyTree, **options: PyTree) -> PyTree:
        return model.apply(_without_projections(params), *given, **options)

    return apply


def _without_projections(params: PyTree) -> PyTree:
    return {name: part for name, part in params.items() if name != PROJECTIONS}


def candidates_term(setup: Setup, threshold: float | Array, prior_decay: float | Array) -> Term:
    """Return the contrast as a term, whose state at the server is the prior of the classes.

    Clients send how many rows of the last local epoch they saw of each class: labelled ones, and
    unlabelled ones that are of one class; the prior comes down.

    Args:
        setup: the run; its network has the projections.
        threshold: of the largest probability of a row that is of one class.
        prior_decay: of the prior, by round.

    Raises:
        ValueError: the network's head has no rows, or clients receive no model to label with.
    """
    head = head_of(setup)
    num_classes = setup.num_classes
    label = labeller(setup, LabelsFrom(EITHER))
    labelled = (augmented_view(setup, LABELLED),) if setup.max_labelled else ()
    weak = augmented_view(setup, UNLABELLED)
    learns = (weak, strong_view(setup))
    confident = at_threshold(threshold)

    def loss(step: Step) -> tuple[Array, Array]:
        def probabilities(view: str) -> tuple[Array, Array]:
            own = jax.lax.stop_gradient(step.outputs[view].logits)
            theirs = jax.lax.stop_gradient(label(step, step.inputs[view], own))
            return jax.nn.softmax(theirs), jax.nn.softmax(own)

        guessed, own = probabilities(weak.name)
        sure = confident(guessed) | confident(own)
        known = [probabilities(view.name)[0] for view in labelled]
        sure_known = [confident(theirs) for theirs in known]

        views = (*labelled, *learns)
        q = jnp.concatenate([*known, *[guessed] * len(learns)])
        confident_rows = jnp.concatenate([*sure_known, *[sure] * len(learns)])
        mask = jnp.concatenate([view.real(step.streams) for view in views])
        features = jnp.concatenate([step.outputs[view.name].features for view in views])
        rows = proxy_contrast(
            *projected(head, step.params, features),
            candidate_classes(q, step.shared, confident_rows),
            mask,
        )
        first = sum(step.inputs[view.name].shape[0] for view in labelled)
        value = batch_mean(rows[first:], mask[first:])
        return value, _counted(step, jnp.argmax(guessed, axis=1), sure)

    def _counted(step: Step, classes: Array, sure: Array) -> Array:
        unlabelled = step.streams[UNLABELLED]
        seen = jnp.where(unlabelled.mask & sure, classes, -1)
        if labelled:
            seen = jnp.concatenate([seen, step.streams[LABELLED].observed])
        steps = jnp.maximum(steps_per_epoch(setup, step.client), 1)
        before = jnp.where(step.number % steps == 0, 0.0, step.local)
        return before + jnp.sum(jax.nn.one_hot(seen, num_classes, dtype=before.dtype), axis=0)

    def update(prior: Array, outcome: RoundResult) -> Array:
        counts = jnp.where(outcome.counts[:, None], outcome.uploads, 0.0)
        return pooled_prior(prior, counts, prior_decay)

    server = AtServer(
        init=lambda *_: jnp.ones(num_classes) / num_classes,
        prepare=lambda prior, context: (Broadcast(shared=prior), prior),
        server_update=update,
    )
    client = AtClient(
        start=lambda prior, *_: jnp.zeros_like(prior),
        collect=lambda trained: trained.local[CANDIDATES],
    )
    return Term(
        CANDIDATES,
        (*labelled, *learns),
        loss,
        server=server,
        client=client,
        sends="counts of examples that they are sure of, by class",
    )


def projected(head: Head, params: PyTree, features: Float[Array, "n d"]) -> tuple[Array, Array]:
    """Return features and rows of the head, each through its map."""
    rows = head.rows(params)
    maps = params[PROJECTIONS]
    of_features = maps["features"]
    return features @ of_features["kernel"].T + of_features["bias"], rows @ maps["rows"]["kernel"].T


def tuning_term(setup: Setup, how: Tuning) -> Term:
    """Return a term without a loss, whose state is how far the server's tuning moves the averaged
    rows of the head; `with_tuning` adds it.

    Raises:
        ValueError: the network's head has no rows, or there is no average.
    """
    head = head_of(setup)
    if setup.federated_optimizer.alone:
        raise ValueError(
            "tuning_epochs tunes the average of the clients' heads, and clients that train alone "
            "are not averaged; set it to 0, or take another config.federated.name"
        )

    def update(state: Array, outcome: RoundResult) -> Array:
        averaged = head.rows(outcome.after.params["model"])
        key = named_key(outcome.context.key, TUNING)
        clients = outcome.context.clients.id
        tuned = tuned_proxies(key, averaged, outcome.uploads, outcome.counts, clients, how)
        return tuned - averaged

    def nothing_more(outcome: RoundResult) -> Traffic:
        # The heads are part of the models that are sent.
        return Traffic(count(0), count(0))

    server = AtServer(
        init=lambda key, params, *_: jnp.zeros_like(head.rows(params)),
        participates=never,
        server_update=update,
    )

    def rows_of(trained: ClientResult) -> Array:
        return head.rows(trained.params)

    return Term(
        TUNING,
        (),
        lambda step: jnp.zeros(()),
        server=server,
        client=AtClient(collect=rows_of),
        log=ForLog(traffic=nothing_more),
        sends="their heads, seen one by one",
    )


def with_tuning(recipe: Recipe) -> Recipe:
    """Return the same method, whose model after a round has the head that `tuning_term` tuned."""
    head = head_of(recipe.setup)

    def after_average(before: ServerState, after: ServerState, data: FederatedData) -> ServerState:
        after = recipe.after_average(before, after, data)
        model = after.params["model"]
        model = head.with_rows(model, head.rows(model) + after.terms[TUNING])
        return after._replace(params={**after.params, "model": model})

    return recipe._replace(after_average=after_average)


def with_notes(recipe: Recipe, tunes: bool) -> Recipe:
    """Return the same method, which says where proxies teach little, and refuses a network whose
    head has no rows after all.

    Args:
        recipe: the method.
        tunes: its server tunes the head.
    """

    def check(data: FederatedData) -> list[str]:
        lines = recipe.check(data)
        _check_square_head(recipe.setup, data.inputs.shape[1:])
        if tunes and recipe.setup.cohort_size == 1:
            lines = [
                *lines,
                "a round has one client: tuning by its proxies alone only drives the classes "
                "apart; set config.federated.cohort_size to 2 or more",
            ]
        own = np.arange(data.index.shape[1]) < np.asarray(data.num_labelled)[:, None]
        seen = np.asarray(data.observed)[np.asarray(data.index)[own]]
        missing = sorted({*range(data.num_classes)} - {*seen.tolist()})
        if missing and len(missing) < data.num_classes:
            lines = [
                *lines,
                f"no client has a label of class {', '.join(map(str, missing))}: its proxies are "
                "rows that were only pushed away",
            ]
        return lines

    return recipe._replace(check=check)
