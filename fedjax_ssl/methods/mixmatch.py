"""MixMatch, federated: guessed labels of unlabelled examples, mixed with labelled ones.

A local step on labelled examples X and unlabelled ones U:

1. One weak view of every labelled example, with its label; A weak views of every unlabelled one, whose guess is the
   mean of the network's predictions for them, sharpened: q_k^(1/T) / sum_j q_j^(1/T), a constant.
2. Each of these |X| + A |U| views is mixed with another, from a random permutation W of all of them: inputs and labels
   of view i become s i + (1 - s) W_i with s = max(s', 1 - s'), s' ~ Beta(alpha, alpha), drawn for every view.
3. With the predictions p of the mixtures, their mixed labels y, K classes and weights w_s, w_u, it minimizes

    w_s 1/|X| sum over mixtures of labelled CE(y, p) + w_u a(r) 1/(A |U| K) sum over mixtures of unlabelled ||y - p||^2

with a(r) = min(r / R, 1) in round r = 1, 2, ..

References:
    Berthelot et al., MixMatch: a holistic approach to semi-supervised learning, NeurIPS 2019, arXiv 1905.02249:
    algorithm 1, equations 2 to 12; whence the defaults, w_u that of CIFAR-10. Its ramp of 16,000 steps is 16 epochs of
    1,024 steps there, and rounds here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.checks import check_numbers, check_whole_numbers
from fedjax_ssl.federated import Method, Setup, Step
from fedjax_ssl.federated.method import View
from fedjax_ssl.federated.terms import augmented_view, supervised_term
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    LABELLED,
    UNLABELLED,
    Guess,
    Shared,
    guessing_term,
    training_method,
    weak_views,
)
from fedjax_ssl.objectives import consistency, linear_ramp, mixup, mixup_share, sharpen, soft_cross_entropy


def mixmatch(
    setup: Setup,
    *,
    num_augmentations: int = 2,
    temperature: float | Array = 0.5,
    mixup_alpha: float = 0.75,
    ramp_rounds: int = 16,
    unlabelled_weight: float | Array = 75.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 1,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """MixMatch at the clients; a client without labels mixes unlabelled examples with each other.

    Args:
        setup: the run.
        num_augmentations: A.
        temperature: T of the sharpening.
        mixup_alpha: alpha.
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_weight: w_u (lambda_U).
        labelled_weight: w_s.
        unlabelled_ratio: |U| / |X| in a step.
        ema_decay: the paper averages over steps, with decay 0.999; else as in `fixmatch`, like the next three.
        server_turn: when the server trains, by plain cross-entropy.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_whole_numbers(num_augmentations=num_augmentations, ramp_rounds=ramp_rounds)
    check_numbers("(0, inf)", temperature=temperature, mixup_alpha=mixup_alpha)
    shared = Shared(
        labelled_weight=labelled_weight,
        unlabelled_weight=unlabelled_weight,
        unlabelled_ratio=unlabelled_ratio,
        labelled_too=False,
        ema_decay=ema_decay,
        server_turn=server_turn,
        server_batch_size=server_batch_size,
        server_epochs=server_epochs,
    )
    shared.check()
    known: tuple[View, ...] = (augmented_view(setup, LABELLED),) if setup.max_labelled else ()
    guessed = weak_views(setup, num_augmentations)

    def loss(step: Step) -> tuple[Array, Guess]:
        batch = step.streams[UNLABELLED]
        predictions = [jax.nn.softmax(step.outputs[view.name].logits) for view in guessed]
        guess = jax.lax.stop_gradient(sharpen(sum(predictions[1:], predictions[0]) / num_augmentations, temperature))
        labels = [jax.nn.one_hot(step.streams[LABELLED].observed, setup.num_classes, dtype=guess.dtype) for _ in known]
        targets = jnp.concatenate([*labels, *[guess] * num_augmentations])
        inputs = jnp.concatenate([step.inputs[view.name] for view in (*known, *guessed)])
        real = jnp.concatenate([view.real(step.streams) for view in (*known, *guessed)])

        keys = jax.random.split(named_key(step.key, "shares"), real.shape[0])
        drawn = jax.vmap(lambda key: mixup_share(key, mixup_alpha))(keys)
        share = jnp.maximum(drawn, 1.0 - drawn)
        partner = shuffled(named_key(step.key, "partners"), real)
        mixed = jax.vmap(mixup)(inputs, inputs[partner], share)
        targets = jax.vmap(mixup)(targets, targets[partner], share)

        dropout = named_key(step.key, "dropout")
        logits = setup.model.apply(step.params, step.model_state, mixed, train=True, key=dropout, mask=real)[0].logits
        first = sum(step.inputs[view.name].shape[0] for view in known)
        supervised = soft_cross_entropy(logits[:first], targets[:first], real[:first])
        unsupervised = consistency(jax.nn.softmax(logits[first:]), targets[first:], real[first:])
        ramp = linear_ramp(step.now.number + 1, 0, ramp_rounds).astype(unsupervised.dtype)
        value = labelled_weight * supervised + unlabelled_weight * ramp * unsupervised
        return value, Guess(jnp.argmax(guess, axis=1), batch.mask)

    term = guessing_term(CONSISTENCY, (*known, *guessed), setup.num_classes, loss)
    at_server = supervised_term(setup)._replace(weight=labelled_weight)
    return training_method(setup, shared, (term,), at_server)


def shuffled(key: Key[Array, ""], real: Bool[Array, " n"]) -> Int[Array, " n"]:
    """A random permutation of the real rows; other rows get some real one.

    Args:
        key: typed PRNG key.
        real: which rows are.
    """
    order = jnp.lexsort((jax.random.bits(key, real.shape), ~real)).astype(jnp.int32)
    return order[jnp.maximum(jnp.cumsum(real, dtype=jnp.int32) - 1, 0)]
