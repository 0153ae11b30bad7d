"""FixMatch, federated: a confident prediction for a weak view of an example is the label of its strong view.

With the prediction q of a weak view and p of a strong one, B_U unlabelled examples, and weights w_s, w_u, a local step
minimizes

    w_s 1/B sum over labelled CE(y, p(weak view)) + w_u 1/B_U sum over unlabelled [max q >= tau] CE(argmax q, p).

References:
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence, NeurIPS 2020, arXiv
    2001.07685: equations 3 and 4, section 4; whence the defaults.
    Federated as the baseline of FedMatch (ICLR 2021, arXiv 2006.12097) and of ProtoFSSL (arXiv 2205.13921); their
    settings are in docs/methods/consistency.md.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import check_choices, check_numbers
from fedjax_ssl.federated import Method, Setup, Step, Term
from fedjax_ssl.federated.method import View
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    LABELLED,
    UNLABELLED,
    Guess,
    Shared,
    consistency_method,
    guessing_term,
    strong_view,
)
from fedjax_ssl.objectives import batch_cross_entropy, fixmatch_loss
from fedjax_ssl.objectives.consistency import MaskMean


def fixmatch(
    setup: Setup,
    *,
    threshold: float | Array = 0.95,
    unlabelled_weight: float | Array = 1.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 7,
    mask_mean: MaskMean = "batch",
    augment_labelled: bool = True,
    labelled_too: bool = False,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """FixMatch at the clients, or at clients without labels beside a server that has some.

    Weak views are `config.augment`, strong ones `config.strong_augment`.

    Args:
        setup: the run. Its `batch_size` is B; a local epoch goes through the unlabelled examples.
        threshold: tau, in [0, 1].
        unlabelled_weight: w_u (lambda_u).
        labelled_weight: w_s (lambda_s); the server's loss has it too.
        unlabelled_ratio: mu, unlabelled examples per labelled one in a step: B_U = mu B.
        mask_mean: "batch", the paper's; "confident": the unlabelled loss is the mean over the confident examples.
        augment_labelled: labelled examples are weakly augmented; False: they stay as they are, here and at the server.
        labelled_too: labelled examples are among the unlabelled ones as well, without their labels.
        ema_decay: predictions come from a moving average of the global network over the rounds, of this decay; 0: from
            the network itself. (The paper averages over steps, with decay 0.999.)
        server_turn: a server that has labelled examples trains on them "before" the clients or "after".
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_numbers("[0, 1]", threshold=threshold)
    check_choices(("batch", "confident"), mask_mean=mask_mean)
    shared = Shared(
        labelled_weight=labelled_weight,
        unlabelled_weight=unlabelled_weight,
        unlabelled_ratio=unlabelled_ratio,
        labelled_too=labelled_too,
        ema_decay=ema_decay,
        server_turn=server_turn,
        server_batch_size=server_batch_size,
        server_epochs=server_epochs,
    )
    weak, strong = augmented_view(setup, UNLABELLED), strong_view(setup)

    def loss(step: Step) -> tuple[Array, Guess]:
        seen, learns = step.outputs[weak.name].logits, step.outputs[strong.name].logits
        value = fixmatch_loss(seen, learns, step.streams[UNLABELLED].mask, threshold, mask_mean)
        confident = jnp.max(jax.nn.softmax(seen), axis=1) >= threshold
        return value, Guess(jnp.argmax(seen, axis=1), confident)

    unsupervised = guessing_term(CONSISTENCY, (weak, strong), setup.num_classes, loss)
    supervised = None if augment_labelled else _supervised_as_stored(setup)
    return consistency_method(setup, shared, unsupervised, supervised)


def _supervised_as_stored(setup: Setup) -> Term:
    """Cross-entropy of labelled examples that are not augmented."""
    view = View(f"{LABELLED}/stored", LABELLED, lambda key, streams: setup.normalize(streams[LABELLED].inputs))

    def loss(step: Step) -> Array:
        batch = step.streams[LABELLED]
        return batch_cross_entropy(step.outputs[view.name].logits, batch.observed, batch.mask)

    return Term("supervised", (view,), loss)
