"""(FL)^2: SemiFL without mixtures, with thresholds for every client and predictions that hold in
flat minima.

The server has a few labelled examples, the clients have none. A round, with f_W the network that a
client receives, a the weak and A the strong augmentation:

1. Every client k of the cohort labels its examples: q_i = softmax f_W(a(x_i)), y_i = argmax q_i,
   m_i = max q_i. With tau_k the mean of m_i and p_k the mean of q_i, its threshold for class c is
   tau_k p_k(c) / max p_k. It trains on A = {i: m_i >= threshold of y_i}; of F = {i: m_i >= 0.95} it
   is sure.
2. Local epochs over A. With x = A(u) for the rows of a batch, Q = softmax f(x) before the step, W*
   the weights that are perturbed to where CE(f(x), y), averaged over the sure rows, rises (ASAM,
   radius rho), and B rows in the batch:

       1/B sum_i CE(f_W(x_i), y_i)  +  1/B sum_{i in F} KL[Q_i || softmax f_W*(x_i)].

   The gradient of the second loss is taken at W*, and the step is taken from W.
3. The clients' models are averaged with weights 1 - tau_k, the mean change is a step of the
   federated optimizer.
4. The server trains on its labelled examples; it also does so before round 0.

Settings follow the authors' code where paper and code differ (docs/methods/others.md).

References:
    Lee, Le, Shin, Lee, (FL)^2: overcoming few labels in federated semi-supervised learning, NeurIPS
    2024, arXiv 2410.23227: section 4 and algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.federated import (
    AtClient,
    Client,
    LocalStep,
    Losses,
    PyTree,
    Recipe,
    RoundContext,
    Setup,
    Stage,
    Step,
    TakeStep,
    Term,
    Training,
)
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, alternating
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    CONFIDENT,
    Choice,
    above,
    confident_epochs,
    confident_term,
    fix_term,
    sent_to,
)
from fedjax_ssl.methods.parts.recommended import AT_SERVER
from fedjax_ssl.methods.parts.setting_types import CountOrZero, Positive, Share, Weight
from fedjax_ssl.methods.parts.terms import examples_mask
from fedjax_ssl.models import Outputs
from fedjax_ssl.objectives import batch_cross_entropy, divergence_from, sharpness_ascent

# Clients and server keep the momentum of their last round.
RECOMMENDED = {"fl2": {"server": {**AT_SERVER, "optimizer.keep_state": True}}}

# lowest weight of a client in the average; if all are certain, they count the same
SMALLEST_WEIGHT = 1e-12


@checked
@dataclass(frozen=True)
class FL2(ServerTurn):
    """Settings of (FL)^2.

    Attributes:
        threshold: at which an example counts as sure.
        adaptive_thresholds: False: only sure examples are trained on, as in SemiFL.
        pseudo_label_weight: w_a, of the loss on all pseudo-labels that are trained on; 0 leaves it
            out.
        consistency_weight: w_cs, of the loss at perturbed weights; 0 leaves it and its passes out.
        perturb: "asam", or "sam", whose ball does not depend on the size of the weights.
        rho: radius of the ball; the paper has 1 for CIFAR-100.
        eta: added to the size of the weights (ASAM).
        uncertainty_weights: clients weigh 1 - tau_k in the average; False: as
            `config.federated.weighting` says.
        pretrain_calls: rounds at the start in which the server trains alone, for `server_epochs`
            each; 0 leaves them out.
        static_batch_norm: statistics of batch norm layers by a pass over the data, with batches of
            10 at the server and of 2048 at the clients.
    """

    threshold: Share = 0.95
    adaptive_thresholds: bool = True
    pseudo_label_weight: Weight = 1.0
    consistency_weight: Weight = 1.0
    perturb: Literal["asam", "sam"] = "asam"
    rho: Positive = 0.1
    eta: Weight = 0.01
    uncertainty_weights: bool = True
    pretrain_calls: CountOrZero = 10


def fl2(setup: Setup, settings: FL2) -> Recipe:
    """(FL)^2: client-specific adaptive thresholds, sharpness-aware consistency, averages by
    uncertainty.

    The paper's global momentum is `config.federated.name = "fedavgm"`, its clipping
    `config.optimizer.clip_norm = 1`. With `config.optimizer.keep_state`, clients and server go on
    with the momentum of their last round, as in the code.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these.
    """
    if is_zero(settings.pseudo_label_weight) and is_zero(settings.consistency_weight):
        raise ValueError(
            "pseudo_label_weight and consistency_weight are both 0; clients would have nothing "
            "to learn"
        )
    labels = confident_term(
        setup,
        at_own_thresholds if settings.adaptive_thresholds else above(settings.threshold),
        certainty,
    )
    if settings.uncertainty_weights:
        labels = labels._replace(
            client=AtClient(collect=lambda trained: sent_to(trained.client).extra),
        )
    learned = fix_term(setup, settings.pseudo_label_weight)
    wrap_step = None
    if not is_zero(settings.consistency_weight):
        probe = Term("perturbation", learned.views, _sure_cross_entropy(learned, settings))
        ascent = partial(
            sharpness_ascent,
            radius=settings.rho,
            adaptive=settings.perturb == "asam",
            eta=settings.eta,
        )
        wrap_step = perturbed_step(partial(_consistency_term, learned, settings), probe, ascent)
    clients = Stage(
        Training(
            tuple(term for term in (labels, learned) if not is_zero(term.weight)),
            confident_epochs(setup.batch_size, setup.local_epochs, with_partners=False),
            weigh=by_uncertainty if settings.uncertainty_weights else None,
            wrap_step=wrap_step,
        )
    )
    return alternating(
        setup,
        clients,
        settings,
        warm_up_rounds=settings.pretrain_calls,
        keep_optimizer=setup.keep_optimizer,
        norm_batch_sizes=(10, 2048),
    )


def client_thresholds(
    probabilities: Float[Array, "p n K"], real: Bool[Array, "p n"]
) -> tuple[Float[Array, " p"], Float[Array, "p K"]]:
    """Return tau_k, and the thresholds of client k for every class (step 1).

    Args:
        probabilities: class probabilities.
        real: mask of real examples.
    """
    counted = real[:, :, None]
    size = jnp.maximum(jnp.sum(real, axis=1, dtype=probabilities.dtype), 1.0)
    largest = jnp.where(real, jnp.max(probabilities, axis=2), 0.0)
    # A mean may round above its values, but the most confident example must stay.
    tau = jnp.minimum(jnp.sum(largest, axis=1) / size, jnp.max(largest, axis=1))
    shares = jnp.sum(jnp.where(counted, probabilities, 0.0), axis=1) / size[:, None]
    most = jnp.max(shares, axis=1, keepdims=True)
    return tau, tau[:, None] * (shares / jnp.where(most > 0, most, 1.0))


def at_own_thresholds(
    state: PyTree, context: RoundContext, probabilities: Float[Array, "p n K"]
) -> Choice:
    """Return the set A of every client; if one value is not finite, all of its examples, so that
    the client is dropped.
    """
    _, thresholds = client_thresholds(probabilities, examples_mask(context.clients))
    labels = jnp.argmax(probabilities, axis=2).astype(jnp.int32)
    unsure = jnp.max(probabilities, axis=2) < jnp.take_along_axis(thresholds, labels, axis=1)
    return Choice(labels, ~unsure)


def certainty(
    context: RoundContext, probabilities: Float[Array, "p n K"], confident: Bool[Array, "p n"]
) -> Float[Array, " p"]:
    """Return tau_k, which a client uploads."""
    return client_thresholds(probabilities, examples_mask(context.clients))[0]


def by_uncertainty(client: Client, uploads: dict[str, PyTree]) -> Float[Array, ""]:
    """Return the weight 1 - tau_k of a client in the average."""
    return jnp.maximum(1.0 - uploads[CONFIDENT], SMALLEST_WEIGHT)


def perturbed_step(
    sharp: Callable[[dict[str, Outputs]], Term],
    probe: Term,
    ascent: Callable[[PyTree, PyTree], PyTree],
) -> Callable[[TakeStep], TakeStep]:
    """Take the gradient of one term at perturbed weights (sharpness-aware minimization), as a
    `Stage.wrap_step`.

    Batch statistics are those of the weights that are kept.

    Args:
        sharp: (outputs at the present weights, as constants) -> the term; no term of the stage, and
            without a state.
        probe: its gradient at the present weights says where to go; no term of the stage, and
            without a state.
        ascent: (parameters, that gradient) -> what is added to them.
    """

    def gradient(at: LocalStep) -> tuple[Array, PyTree, Losses]:
        packed = at.packing

        def before(w: PyTree) -> tuple[tuple[Array, Array], Losses]:
            losses = at.evaluate(w, (*at.terms, probe))
            return (losses.total(at.terms), losses.terms[probe.name]), losses

        # One forward pass, from which two gradients are computed.
        (loss, height), pull_back, losses = jax.vjp(before, at.weights, has_aux=True)
        (plain,) = pull_back((jnp.ones_like(loss), jnp.zeros_like(height)))
        (uphill,) = pull_back((jnp.zeros_like(loss), jnp.ones_like(height)))
        offset = packed.pack(ascent(packed.unpack(at.weights), packed.unpack(uphill)))
        term = sharp(jax.lax.stop_gradient(losses.outputs))
        moved = jax.lax.stop_gradient(jax.tree.map(jnp.add, at.weights, offset))
        more, steep = jax.value_and_grad(lambda w: at.evaluate(w, (term,)).total((term,)))(moved)
        return loss + more, jax.tree.map(jnp.add, plain, steep), losses

    return lambda step: lambda at: step(at._replace(gradient=gradient))


def _sure_rows(step: Step, settings: FL2) -> Bool[Array, " b"]:
    batch = step.streams["fix"]
    return batch.mask & (sent_to(step.client).confidence[batch.position] >= settings.threshold)


def _sure_cross_entropy(learned: Term, settings: FL2) -> Callable[[Step], Array]:
    """Return L_p, the mean over the sure rows, 0 if there are none; its gradient gives the
    perturbation of the weights.
    """
    (view,) = learned.views

    def loss(step: Step) -> Float[Array, ""]:
        targets = sent_to(step.client).labels[step.streams["fix"].position]
        sure = _sure_rows(step, settings)
        return batch_cross_entropy(step.outputs[view.name].logits, targets, sure)

    return loss


def _consistency_term(learned: Term, settings: FL2, before: dict[str, Outputs]) -> Term:
    """L_cs: the sure rows' predictions at the perturbed weights, against those before."""
    (view,) = learned.views

    def loss(step: Step) -> Float[Array, ""]:
        after = step.outputs[view.name].logits
        sure = _sure_rows(step, settings)
        return divergence_from(before[view.name].logits, after, step.streams["fix"].mask, sure)

    return Term("consistency", (view,), loss, settings.consistency_weight)
