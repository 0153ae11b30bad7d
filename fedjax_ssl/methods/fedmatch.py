"""FedMatch: agreement with the models of similar clients, and weights of their own for labelled and unlabelled data.

Every weight is a sum sigma + psi. Labelled examples move sigma alone, and unlabelled ones psi alone:

    L_s(sigma) = lambda_s CE(y, p(x))
    L_u(psi) = lambda_a CE(vote(u), p(strong u)) + lambda_i 1/H sum_j KL[p_{h_j}(u) || p(u)]
               + lambda_L2 ||sigma - psi||^2 + lambda_L1 ||psi||_1

The first two terms of L_u are means over the examples whose largest probability reaches a threshold. The vote is among
the client and its helpers h_1 .. h_H: other clients' psi with the sigma that the client received. With labels at the
clients they train both parts, in every step sigma and then psi at the sigma already moved. With labels at the server it
trains sigma before the clients, and they train psi.

References:
    Jeong, Yoon, Yang, Hwang, Federated semi-supervised learning with inter-client consistency and disjoint learning,
    ICLR 2021, arXiv 2006.12097. What the paper leaves open is as in the authors' code; see docs/methods/fedmatch.md.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_ssl.federated import Method, ServerState, Setup, Stage, Step, Term, federated_method
from fedjax_ssl.federated.method import Params
from fedjax_ssl.federated.terms import augmented_view, supervised_term
from fedjax_ssl.methods.parts import fedmatch_rounds as rounds
from fedjax_ssl.methods.parts.consistency_training import strong_view
from fedjax_ssl.methods.parts.fedmatch_exchange import PSI, SIGMA, combine, upload
from fedjax_ssl.methods.parts.fedmatch_settings import Settings, settings_of
from fedjax_ssl.methods.parts.matched_batches import bounds_of, matched_batches
from fedjax_ssl.objectives import agreement_vote, cross_entropy, inter_client_kl, l1_norm


class Consistency(NamedTuple):
    """Losses on a batch of unlabelled examples, means over the confident ones; 0 without any."""

    cross_entropy: Float[Array, ""]  # of the strong view against the vote
    divergence: Float[Array, ""]  # of the plain view from the helpers
    labels: Int[Array, " n"]  # the vote; -1 where the model is not confident
    confidence: Float[Array, " n"]


def fedmatch(
    setup: Setup,
    *,
    preset: str = "paper",
    labels_at: str = "auto",
    supervised_weight: float | Array | None = None,
    agreement_weight: float | Array = 1e-2,
    kl_weight: float | Array = 1e-2,
    l2_weight: float | Array = 10.0,
    l1_weight: float | Array | None = None,
    threshold: float | Array | None = None,
    num_helpers: int = 2,
    helper_interval: int = 10,
    helper_hold: str = "one_round",
    tie: str = "lowest_index",
    clip_eps: float | Array | None = None,
    noise: str = "truncated",
    decomposition: str = "full",
    psi_factor: float | Array = 0.2,
    evaluate_sparse: bool = True,
    l1_threshold: float | Array | None = None,
    delta_threshold: float | Array | None = None,
    s2c_lossy: bool = False,
    first_contact: str = "dense",
    c2s_send_sparsified: bool = False,
    encoding: str = "smallest",
    unlabelled_batch_size: int | None = None,
    server_batch_size: int = 100,
    server_epochs: int = 1,
    shuffle: bool = False,
    lr_schedule: str = "client",
    lr_divisor: float | Array = 3.0,
    patience: int | None = None,
) -> Method:
    """FedMatch: labelled examples move one part of the weights, unlabelled ones and similar clients' models the other.

    The paper's optimizer is SGD at 1e-3 with `config.optimizer.batch_size` = 10 labelled examples per step.

    Args:
        setup: the run.
        preset: what a setting that is None is: "paper", "code" (threshold 0.75, patience 20 with labels at the server,
            clip_eps 1e-7) or "streaming_alt" (supervised_weight 1, delta_threshold 1e-5).
        labels_at: who trains on labels: the "server", the "clients", or "auto": the server, if it has some.
        supervised_weight: lambda_s; 10.
        agreement_weight: lambda_a; the paper's lambda_ICCS is this and the next one.
        kl_weight: lambda_i.
        l2_weight: lambda_L2, of a sum over all weights.
        l1_weight: lambda_L1, likewise; 1e-4 with labels at the clients and 1e-5 at the server.
        threshold: tau, of the largest probability on the example that is not strongly augmented; 0.85.
        num_helpers: H; fewer where fewer clients were seen. 0: no inter-client loss.
        helper_interval: rounds between two with helpers.
        helper_hold: they serve "one_round", or clients "keep" them until they get others.
        tie: of votes, see `agreement_vote`.
        clip_eps: probabilities below it count as it in cross-entropy and divergence; 0: they do not.
        noise: image by which helpers are found, see `noise_image`.
        decomposition: "full"; "none": one part and neither L2 nor L1; "without_sigma", "without_psi": that part is 0
            and both losses move the other one. A single part starts as (1 + psi_factor) sigma.
        psi_factor: psi starts as this times sigma.
        evaluate_sparse: evaluation takes weights of psi up to l1_threshold as 0.
        l1_threshold: 5e-6 with labels at the clients, 1e-5 at the server.
        delta_threshold: weights that differ by no more are not sent; 5e-5 and 1e-5.
        s2c_lossy: clients start from what they are sent, as in the paper; False: the code's, it only counts.
        first_contact: cost of the first model that a client is sent after round 0: "dense", or "init", its difference
            from the initial one.
        c2s_send_sparsified: uploads are psi as it is evaluated.
        encoding: of what is sent, for the count of bytes, see `message_bytes`.
        unlabelled_batch_size: per step; see `matched_batches`.
        server_batch_size: labelled examples per step at the server.
        server_epochs: before every round.
        shuffle: batches in a fresh order instead of the stored one.
        lr_schedule: the learning rate falls with the loss on validation examples of each "client"'s model, once per
            participation, of the "global" model, once per round, or not at all ("none").
        lr_divisor: by which it falls.
        patience: evaluations without an improvement before it does; 5.

    Raises:
        ValueError: for a setting outside these, or where learning rate times l2_weight is 1 or more.
    """
    given = {name: value for name, value in locals().items() if name not in ("setup", "preset", "labels_at")}
    settings = settings_of(setup, preset, labels_at, given)
    stage = Stage(
        terms=(_unsupervised(setup, settings),),
        sampler=matched_batches(
            setup.batch_size,
            settings.unlabelled_batch_size,
            setup.local_epochs,
            bounds_of(setup),
            settings.shuffle,
        ),
        labelled_quota="any",
        rate=rounds.RATES[settings.lr_schedule],
    )
    supervised = supervised_term(setup)._replace(weight=settings.supervised_weight, group=settings.supervised_part)
    if settings.at_server:
        stage = stage._replace(server=rounds.server_training(setup, settings, supervised))
    else:
        stage = stage._replace(terms=(supervised, *stage.terms))

    def evaluated(state: ServerState) -> tuple[PyTree, PyTree]:
        return rounds.evaluated(settings, state.params), state.model_state

    return federated_method(
        setup,
        (stage,),
        groups=settings.parts,
        split=settings.split,
        combine=combine,
        network=evaluated,
        needs=("server",) if settings.at_server else ("labels",),
        upload=partial(upload, settings.exchange),
        receive=rounds.receive_differences if settings.s2c_lossy else None,
    )


def consistency(
    plain_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    tie: str = "lowest_index",
    clip_eps: float | Array = 0.0,
) -> Consistency:
    """Inter-client consistency (equations 2 to 4), without its weights. Votes and helpers are constants."""
    q = jax.nn.softmax(plain_logits)
    log_q = jnp.where(clip_eps > 0, jnp.log(jnp.maximum(q, clip_eps)), jax.nn.log_softmax(plain_logits))
    confidence = jax.lax.stop_gradient(jnp.max(q, axis=1))
    confident = mask & (confidence >= threshold)
    vote = jnp.where(confident, agreement_vote(q, helper_probs, available, tie), -1)
    # -log max(p, eps) is the smaller of the two.
    ceiling = jnp.where(clip_eps > 0, -jnp.log(clip_eps), jnp.inf)
    pseudo = jnp.minimum(cross_entropy(strong_logits, vote), ceiling)
    number = jnp.maximum(jnp.sum(confident, dtype=q.dtype), 1.0)
    divergence = jnp.where(confident, inter_client_kl(log_q, helper_probs, available), 0.0)
    return Consistency(jnp.sum(pseudo) / number, jnp.sum(divergence) / number, vote, confidence)


def regularizer(parts: Params, l2_weight: float | Array, l1_weight: float | Array) -> Float[Array, ""]:
    """lambda_L2 ||sigma - psi||^2 + lambda_L1 ||psi||_1, sums over all weights; a part that is missing is 0."""
    sigma, psi = parts.get(SIGMA), parts.get(PSI)
    difference = psi if sigma is None else sigma if psi is None else jax.tree.map(jnp.subtract, sigma, psi)
    squares = sum((jnp.sum(jnp.square(w)) for w in jax.tree.leaves(difference)), start=jnp.zeros(()))
    return l2_weight * squares + (l1_weight * l1_norm(psi) if psi is not None else 0.0)


def _unsupervised(setup: Setup, settings: Settings) -> Term:
    """L_u, and all that server and clients send each other for it."""
    plain, strong = augmented_view(setup, "unlabelled"), strong_view(setup)

    def loss(step: Step) -> tuple[Array, rounds.Votes]:
        batch = step.streams["unlabelled"]
        found = consistency(
            step.outputs[plain.name].logits,
            step.outputs[strong.name].logits,
            *rounds.ask_helpers(setup, settings, step, step.inputs[plain.name]),
            batch.mask,
            settings.threshold,
            settings.tie,
            settings.clip_eps,
        )
        total = settings.agreement_weight * found.cross_entropy + settings.kl_weight * found.divergence
        if settings.decomposition != "none":
            some = jnp.any(batch.mask).astype(total.dtype)  # with a single part there are steps without any
            total = total + some * regularizer(step.groups, settings.l2_weight, settings.l1_weight)
        return total, rounds.noted(step.local, batch, found.labels, found.confidence)

    server, client, log = rounds.around_training(setup, settings)
    return Term(
        rounds.TERM, (plain, strong), loss, group=settings.unsupervised_part, server=server, client=client, log=log
    )
