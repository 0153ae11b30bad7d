"""FixMatch, UDA, MixMatch, mean teacher, Pi-model, VAT and Pseudo-label, federated: methods that
make predictions consistent.

A local step takes B labelled examples and B_U = mu B unlabelled ones and minimizes

    w_s L_s + w_u L_u,    L_s = 1/B sum over labelled CE(y, p(weak view)),

and a client with only one kind of examples minimizes the loss on these. The methods differ in L_u,
a mean over unlabelled examples u. With the scores z, the prediction q = softmax(z) for a weak view
of u, the prediction p that learns, and K classes:

    fixmatch       [max q >= tau] CE(argmax q, p(strong view))
    uda            [max q > beta] CE(softmax(z / T), p(strong view));
                   L_s with training signal annealing
    pseudo_label   a(r) [max q >= tau] CE(argmax q, q),  a(r) = clip((r - T1) / (T2 - T1), 0, 1)
    pi_model       g(r) 1/K ||q - q'||^2,
                   q' of a second pass with its own augmentation and dropout
    mean_teacher   g(r) 1/K ||q - q'||^2,
                   q' of a teacher, the moving average of the network over local steps
    vat            KL(p(u) || p(u + r)) + w_e H(p(u)),
                   r the perturbation of length epsilon that changes p most
    mixmatch       see `mixmatch`: guessed labels of all unlabelled examples, mixed with the
                   labelled ones

in round r = 1, 2, .., with g(r) = exp(-5 (1 - min(r, R) / R)^2). Targets are constants; only the
paper's Pi-model lets the gradient flow through both passes. Where the server has labelled examples
it minimizes w_s L_s on them in every round, before the clients train or after it.

References:
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence,
    NeurIPS 2020, arXiv 2001.07685: equations 3 and 4, section 4. Xie et al., Unsupervised data
    augmentation for consistency training, NeurIPS 2020, arXiv 1904.12848: sections 2, 3 and 4
    (CIFAR-10). Berthelot et al., MixMatch: a holistic approach to semi-supervised learning, NeurIPS
    2019, arXiv 1905.02249: algorithm 1, equations 2 to 12; w_u that of CIFAR-10. Its ramp of 16,000
    steps is 16 epochs of 1,024 steps there, and rounds here. Tarvainen and Valpola, Mean teachers
    are better role models, NeurIPS 2017, arXiv 1703.01780: section 2; weight, decay and ramp from
    its CIFAR-10 runs, the ramp's epochs being rounds here. Laine and Aila, Temporal ensembling for
    semi-supervised learning, ICLR 2017, arXiv 1610.02242: section 2.1 and algorithm 1, its epochs
    being rounds here. Its w_u is 100 M/N, with M labelled of N examples, because its cross-entropy
    is divided by all examples of the batch. Miyato et al., Virtual adversarial training: a
    regularization method for supervised and semi-supervised learning, TPAMI 2019, arXiv 1704.03976:
    equations 5 to 8, algorithm 1; w_u = 1, one power iteration. With w_e = 1 (entropy minimization,
    section 4.3) it is the paper's VAT+EntMin. Lee, Pseudo-label: the simple and efficient
    semi-supervised learning method for deep neural networks, ICML 2013 workshop: equations 15 and
    16, where tau is 0, w_u is alpha_f, and T1, T2 are 100 and 600 epochs. Federated as in Jeong et
    al., Federated semi-supervised learning with inter-client consistency and disjoint learning,
    ICLR 2021, arXiv 2006.12097, section 5, and as the baseline of ProtoFSSL (arXiv 2205.13921).

Two settings of all these methods select the model that predicts q and the rows that count:
`labels_from` and `threshold_rule` (`fedjax_ssl.methods.parts.guess`).

Defaults are those of the papers; settings of the federated tables are in
docs/methods/baselines.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl import objectives
from fedjax_ssl.checks import check_whole_numbers, checked, is_zero
from fedjax_ssl.federated import (
    Needs,
    Recipe,
    Setup,
    Stage,
    Step,
    Steps,
    Term,
    Training,
)
from fedjax_ssl.federated.contract import (
    AtServer,
    PyTree,
    RoundResult,
    ServerState,
    View,
    merged,
    never,
)
from fedjax_ssl.federated.sampler import labelled_epochs, paired_batches, passes
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.guess import Guess, Guessing, LabelsFrom, guesses_of, labeller
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS, AT_SERVER, Fields
from fedjax_ssl.methods.parts.setting_types import (
    BetaParameter,
    Count,
    CountOrZero,
    Decay,
    Positive,
    Share,
    Weight,
)
from fedjax_ssl.methods.parts.terms import LABELLED, UNLABELLED, augmented_view, supervised_term
from fedjax_ssl.methods.parts.views_and_teachers import (
    Teacher,
    adversarial_pass,
    check_weak_views,
    second_pass,
    strong_view,
    taught_term,
    teacher_network,
)
from fedjax_ssl.registry import UsedWith

_Threshold = Annotated[Share, UsedWith("threshold_rule=fixed")]
# Weak views of digits are shifted, strong views are rotated.
_VIEWS = {
    "augment.name": "shift",
    "augment.pixels": 1,
    "augment.fill": "constant",
    "strong_augment.name": "rotate",
}
_FIELDS: dict[str, Fields] = {
    "fixmatch": {"method.unlabelled_ratio": 2},
    "uda": {},
    # five epochs, or the paper's weight of 75, were worse
    "mixmatch": {"method.unlabelled_weight": 5.0, "optimizer.local_epochs": 1},
    "mean_teacher": {"method.unlabelled_weight": 10.0},
    "pi_model": {"method.unlabelled_weight": 10.0, "optimizer.local_epochs": 1},
    "vat": {"method.radius": 1.0},  # over the 64 standardized pixels of the digits
    "pseudo_label": {},
}
RECOMMENDED = {
    name: {
        "per_client": {**AT_CLIENTS, **_VIEWS, **fields},
        "server": {**AT_SERVER, **_VIEWS, "method.server_batch_size": 10, **fields},
    }
    for name, fields in _FIELDS.items()
}

# Names of the terms of the loss on unlabelled examples and of the moving average.
TERM = "consistency"
AVERAGE = "moving_average"
# state -> parameters and batch statistics of the network that predicts
Network = Callable[[ServerState], tuple[PyTree, PyTree]]


@checked
@dataclass(frozen=True)
class Settings:
    """Settings that all methods of this family share.

    Attributes:
        unlabelled_weight: w_u.
        labelled_weight: w_s; the server's loss has it too.
        unlabelled_ratio: mu, unlabelled examples per labelled one in a step: B_U = mu B.
        labelled_too: use labelled examples as unlabelled ones too, without their labels.
        ema_decay: decay of a moving average of the global network over the rounds, which then
            predicts; 0: the network itself predicts. (The papers average over steps, with decay
            0.999 or 0.9999.)
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.
        threshold: smallest confidence of an unlabelled example that counts; 0: all count.
    """

    unlabelled_weight: Weight = 1.0
    labelled_weight: Weight = 1.0
    threshold: _Threshold = 0.0
    unlabelled_ratio: Count = 7
    labelled_too: bool = False
    ema_decay: Decay = 0.0
    server_batch_size: Count = 100
    server_epochs: Count = 1


@checked
@dataclass(frozen=True)
class Confident:
    """Settings of FixMatch's loss on unlabelled examples.

    Attributes:
        threshold: tau.
        mask_mean: "batch", the paper's; "confident": the unlabelled loss is the mean over the
            confident examples.
    """

    threshold: _Threshold = 0.95
    mask_mean: Literal["batch", "confident"] = "batch"


def confident_term(setup: Setup, settings: Confident, guessing: Guessing) -> Term:
    """Confident predictions for weak views are the labels of strong views (FixMatch).

    Args:
        setup: the run.
        settings: the term's own.
        guessing: model that labels unlabelled examples, and rule for those that count.
    """
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)
    guesses = guesses_of(setup, guessing, settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        guess = guesses(step, step.inputs[weak.name], step.outputs[weak.name].logits)
        learns = step.outputs[strong.name].logits
        mask = step.streams[UNLABELLED].mask
        if settings.mask_mean == "confident":
            mask = mask & guess.counted
        return _hard_label_loss(learns, guess, mask), guess, learns

    return guesses.term(TERM, (weak, strong), loss)


@checked
@dataclass(frozen=True)
class FixMatch(Confident, Settings):
    """Settings of FixMatch.

    Attributes:
        augment_labelled: labelled examples are weakly augmented; False: they stay as they are, here
            and at the server.
    """

    augment_labelled: bool = True


def fixmatch(setup: Setup, settings: FixMatch, guessing: Guessing) -> Recipe:
    """FixMatch at the clients, or at clients without labels next to a server with labels.

    A confident prediction for a weak view of an example is the label of its strong view. Weak views
    are `config.augment`, strong ones `config.strong_augment`.

    Args:
        setup: the run. Its `batch_size` is B; a local epoch goes through the unlabelled examples.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """
    stored = View(
        f"{LABELLED}/stored",
        LABELLED,
        lambda key, streams: setup.normalize(streams[LABELLED].inputs),
    )

    def as_stored(step: Step) -> Array:
        batch = step.streams[LABELLED]
        logits = step.outputs[stored.name].logits
        return objectives.batch_cross_entropy(logits, batch.observed, batch.mask, loss=setup.loss)

    supervised = None if settings.augment_labelled else Term("supervised", (stored,), as_stored)
    unsupervised = confident_term(setup, settings, guessing)
    return _method(setup, settings, unsupervised, supervised)


@checked
@dataclass(frozen=True)
class UDA(Settings):
    """Settings of UDA.

    Attributes:
        threshold: beta; 0: every example counts.
        temperature: T of the targets; 1: they are not sharpened.
        tsa: schedule of alpha, with t the share of rounds so far: "exp" is exp(5 (t - 1)), "linear"
            t, "log" 1 - exp(-5 t); "none": plain cross-entropy.
        tsa_rounds: rounds until alpha is 1; 0: all rounds of the run.
        unlabelled_ratio: mu, unlabelled examples per labelled one in a step; the paper has batches
            of 64 and 448.
    """

    threshold: _Threshold = 0.8
    temperature: Positive = 0.4
    tsa: Literal["exp", "linear", "log", "none"] = "exp"
    tsa_rounds: Annotated[CountOrZero, UsedWith("tsa!=none")] = 0


def uda(setup: Setup, settings: UDA, guessing: Guessing) -> Recipe:
    """UDA at the clients, or at clients without labels next to a server with labels, which then
    anneals in their place.

    L_s has training signal annealing: it is the mean over the labelled examples whose true class is
    not yet more probable than alpha (1 - 1/K) + 1/K, where alpha rises to 1 over the rounds.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, a federation with nothing to learn from, or
            annealing over a run whose rounds are not known.
    """
    rounds = settings.tsa_rounds or setup.rounds
    if settings.tsa != "none" and not rounds:
        raise ValueError(
            "tsa_rounds is 0, all rounds of the run, but it is not known how many; set tsa_rounds"
        )
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)
    labelled = augmented_view(setup, LABELLED)

    guesses = guesses_of(setup, guessing, settings.threshold, above=True)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        guess = guesses(step, step.inputs[weak.name], step.outputs[weak.name].logits)
        targets = jax.nn.softmax(jax.lax.stop_gradient(guess.logits) / settings.temperature)
        learns = step.outputs[strong.name].logits
        mask = step.streams[UNLABELLED].mask
        return objectives.soft_cross_entropy(learns, targets, mask, guess.counted), guess, learns

    def annealed(step: Step) -> Array:
        batch = step.streams[LABELLED]
        progress = jnp.minimum(step.now.number.astype(jnp.result_type(float)) / (rounds or 1), 1.0)
        ceiling = objectives.training_signal_ceiling(progress, setup.num_classes, settings.tsa)
        return objectives.annealed_cross_entropy(
            step.outputs[labelled.name].logits, batch.observed, batch.mask, ceiling, setup.loss
        )

    supervised = None if settings.tsa == "none" else Term("supervised", (labelled,), annealed)
    return _method(setup, settings, guesses.term(TERM, (weak, strong), loss), supervised)


@checked
@dataclass(frozen=True)
class MixMatch(Settings):
    """Settings of MixMatch.

    Attributes:
        num_augmentations: A.
        temperature: T of the sharpening.
        mixup_alpha: alpha.
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_ratio: |U| / |X| in a step.
    """

    unlabelled_weight: Weight = 75.0
    unlabelled_ratio: Count = 1
    labelled_too: bool = field(default=False, init=False)
    # ^ labelled examples are mixed with the others anyway
    num_augmentations: Count = 2
    temperature: Positive = 0.5
    mixup_alpha: BetaParameter = 0.75
    ramp_rounds: Count = 16


def mixmatch(setup: Setup, settings: MixMatch, guessing: Guessing) -> Recipe:
    """MixMatch at the clients; a client without labels mixes its unlabelled examples with each
    other.

    A local step on labelled examples X and unlabelled ones U:

    1. One weak view of every labelled example, with its label; A weak views of every unlabelled
       one, whose guess is the mean of the network's predictions for them, sharpened: q_k^(1/T) /
       sum_j q_j^(1/T), a constant.
    2. Each of these |X| + A |U| views is mixed with another, from a random permutation W of all of
       them: inputs and labels of view i become s i + (1 - s) W_i, s = max(s', 1 - s'), s' ~
       Beta(alpha, alpha) for every view.
    3. With the predictions p of the mixtures and their mixed labels y, it minimizes

           w_s 1/|X| sum over mixtures of labelled CE(y, p)
               + w_u a(r) 1/(A |U| K) sum over mixtures of unlabelled ||y - p||^2

    with a(r) = min(r / R, 1) in round r = 1, 2, .. A server that has labelled examples trains by
    plain cross-entropy.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """
    check_weak_views(setup, settings.num_augmentations)
    known: tuple[View, ...] = (augmented_view(setup, LABELLED),) if setup.max_labelled else ()
    weak = augmented_view(setup, UNLABELLED)
    more = (
        weak._replace(name=f"{weak.name}/{place}") for place in range(1, settings.num_augmentations)
    )
    guessed = (weak, *more)
    guesses = guesses_of(setup, guessing, settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        own = [step.outputs[view.name].logits for view in guessed]
        theirs = [
            guesses.label(step, step.inputs[view.name], logits)
            for view, logits in zip(guessed, own, strict=True)
        ]
        mean = _mean_prediction(theirs)
        said = guesses.judged(step, jnp.log(mean), jnp.log(_mean_prediction(own)))
        guess = jax.lax.stop_gradient(objectives.sharpen(mean, settings.temperature))
        labels = [
            jax.nn.one_hot(step.streams[LABELLED].observed, setup.num_classes, dtype=guess.dtype)
            for _ in known
        ]
        targets = jnp.concatenate([*labels, *[guess] * len(guessed)])
        inputs = jnp.concatenate([step.inputs[view.name] for view in (*known, *guessed)])
        real = jnp.concatenate([view.real(step.streams) for view in (*known, *guessed)])

        keys = jax.random.split(named_key(step.key, "shares"), real.shape[0])
        drawn = jax.vmap(lambda key: objectives.mixup_share(key, settings.mixup_alpha))(keys)
        share = jnp.maximum(drawn, 1.0 - drawn)
        partner = shuffled(named_key(step.key, "partners"), real)
        mixed = jax.vmap(objectives.mixup)(inputs, inputs[partner], share)
        targets = jax.vmap(objectives.mixup)(targets, targets[partner], share)

        dropout = named_key(step.key, "dropout")
        logits = setup.model.apply(
            step.params, step.model_state, mixed, train=True, key=dropout, mask=real
        )[0].logits
        first = sum(step.inputs[view.name].shape[0] for view in known)
        supervised = objectives.soft_cross_entropy(logits[:first], targets[:first], real[:first])
        unsupervised = objectives.consistency(
            jax.nn.softmax(logits[first:]),
            targets[first:],
            real[first:],
            jnp.tile(said.counted, len(guessed)),
        )
        ramp = objectives.linear_ramp(step.now.number + 1, 0, settings.ramp_rounds)
        weight = settings.unlabelled_weight * ramp.astype(unsupervised.dtype)
        value = settings.labelled_weight * supervised + weight * unsupervised
        return value, said, logits[first : first + said.counted.shape[0]]

    term = guesses.term(TERM, (*known, *guessed), loss)
    at_server = supervised_term(setup)._replace(weight=settings.labelled_weight)
    return _method_of_terms(setup, settings, (term,), at_server)


def _mean_prediction(logits: list[Float[Array, "b K"]]) -> Float[Array, "b K"]:
    predictions = [jax.nn.softmax(one) for one in logits]
    return sum(predictions[1:], predictions[0]) / len(predictions)


def shuffled(key: Key[Array, ""], real: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Return a random permutation of the real rows; other rows point to any real one.

    Args:
        key: typed PRNG key.
        real: mask of real rows.
    """
    order = jnp.lexsort((jax.random.bits(key, real.shape), ~real)).astype(jnp.int32)
    return order[jnp.maximum(jnp.cumsum(real, dtype=jnp.int32) - 1, 0)]


@checked
@dataclass(frozen=True)
class MeanTeacher(Settings):
    """Settings of the mean teacher.

    Attributes:
        decay: largest decay of the teacher, which predicts.
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_ratio: examples of the consistency loss per labelled one in a step.
        labelled_too: the consistency loss is on labelled examples too, as in the paper.
    """

    unlabelled_weight: Weight = 100.0
    unlabelled_ratio: Count = 3
    labelled_too: bool = True
    threshold: _Threshold = field(default=0.0, init=False)
    ema_decay: Decay = field(default=0.0, init=False)  # the teacher is a moving average already
    decay: Decay = 0.999
    ramp_rounds: Count = 5


def mean_teacher(setup: Setup, settings: MeanTeacher, guessing: LabelsFrom) -> Recipe:
    """Mean teacher at the clients, or at clients without labels next to a server with labels.

    After step t, counted over all rounds, the teacher g becomes d g + (1 - d) f with the student f
    and d = min(1 - 1 / (t + 1), decay). Students and teachers are averaged separately; the teacher
    is sent with the student, which doubles the traffic. `fedsiam` is this with a second head for
    the consistency loss.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """
    weak = augmented_view(setup, UNLABELLED)
    label = labeller(setup, guessing)

    def loss(step: Step) -> tuple[Array, Teacher]:
        teacher: Teacher = step.local
        taught = second_pass(setup, step, teacher.params, teacher.model_state)
        logits = label(step, taught.inputs, taught.logits)
        targets = jax.lax.stop_gradient(jax.nn.softmax(logits))
        value = objectives.consistency(
            jax.nn.softmax(step.outputs[weak.name].logits), targets, step.streams[UNLABELLED].mask
        )
        return _ramped(step, value, settings.ramp_rounds), teacher._replace(
            model_state=taught.model_state
        )

    term = taught_term(TERM, (weak,), loss, settings.decay)
    return _method(setup, settings, term, network=teacher_network(TERM))


@checked
@dataclass(frozen=True)
class PiModel(Settings):
    """Settings of the Pi-model.

    Attributes:
        stop_gradient: hold the second pass fixed; in the paper the gradient flows through both.
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_ratio: examples of the consistency loss per labelled one in a step.
        labelled_too: the consistency loss is on labelled examples too, as in the paper.
    """

    unlabelled_weight: Weight = 100.0
    unlabelled_ratio: Count = 1
    labelled_too: bool = True
    stop_gradient: bool = False
    ramp_rounds: Count = 80


def pi_model(setup: Setup, settings: PiModel, guessing: Guessing) -> Recipe:
    """Π-model at the clients, or at clients without labels next to a server with labels.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """
    weak = augmented_view(setup, UNLABELLED)
    guesses = guesses_of(setup, guessing, settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        learns = step.outputs[weak.name].logits
        again = second_pass(setup, step, step.params, step.model_state)
        guess = guesses(step, again.inputs, again.logits)
        other = jax.nn.softmax(guess.logits)
        if settings.stop_gradient:
            other = jax.lax.stop_gradient(other)
        mask = step.streams[UNLABELLED].mask
        value = objectives.consistency(jax.nn.softmax(learns), other, mask, guess.counted)
        return _ramped(step, value, settings.ramp_rounds), guess, learns

    return _method(setup, settings, guesses.term(TERM, (weak,), loss))


@checked
@dataclass(frozen=True)
class VAT(Settings):
    """Settings of virtual adversarial training.

    Attributes:
        radius: epsilon, over all numbers of an input as the network sees it. The paper's on
            CIFAR-10 (whitened) without augmentation is 8, on SVHN 2.5; it has to fit the data.
        entropy_weight: w_e.
        unlabelled_ratio: examples of the adversarial loss per labelled one in a step; the paper has
            batches of 32 and 128.
        labelled_too: the adversarial loss is on labelled examples too, as in the paper.
    """

    unlabelled_ratio: Count = 4
    labelled_too: bool = True
    radius: Positive = 8.0
    entropy_weight: Weight = 0.0


def vat(setup: Setup, settings: VAT, guessing: Guessing) -> Recipe:
    """Virtual adversarial training at the clients, or at clients without labels next to a server
    with labels.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """

    guesses = guesses_of(setup, guessing, settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        batch = step.streams[UNLABELLED]
        # Separate passes, which do not update the running statistics of batch norm, as in the
        # authors' code.
        inputs = setup.normalize(setup.augment(named_key(step.key, "view"), batch.inputs))
        logits, moved = adversarial_pass(setup, step, inputs, batch.mask, settings.radius)
        guess = guesses(step, inputs, logits)
        value = objectives.divergence_from(guess.logits, moved, batch.mask, guess.counted)
        if not is_zero(settings.entropy_weight):
            entropy = objectives.mean_entropy(logits, batch.mask)
            value = value + settings.entropy_weight * entropy
        return value, guess, moved

    return _method(setup, settings, guesses.term(TERM, (), loss))


@checked
@dataclass(frozen=True)
class PseudoLabel(Settings):
    """Settings of Pseudo-label.

    Attributes:
        threshold: tau; the paper has none.
        ramp_start: T1, in rounds. The defaults of T1 and T2 are a tenth of the paper's, which
            counts epochs: a round may have several, and a run has fewer rounds.
        ramp_end: T2, above T1.
        unlabelled_ratio: unlabelled examples per labelled one in a step; the paper has batches of
            32 and 256.
    """

    unlabelled_weight: Weight = 3.0
    unlabelled_ratio: Count = 8
    threshold: _Threshold = 0.0
    ramp_start: CountOrZero = 10
    ramp_end: Count = 60


def pseudo_label(setup: Setup, settings: PseudoLabel, guessing: Guessing) -> Recipe:
    """Pseudo-label at the clients, or at clients without labels next to a server with labels.

    In every step the network's most probable class is an unlabelled example's label. Unlike
    `network_pseudo_label` and `fedsem`, which label with the global network before local training,
    the labels follow the client's own network.

    Args:
        setup: the run.
        settings: the method's own.
        guessing: model that labels unlabelled examples, and rule for those that count.

    Raises:
        ValueError: for a setting outside its range, or a federation with nothing to learn from.
    """
    check_whole_numbers(settings.ramp_start + 1, ramp_end=settings.ramp_end)
    weak = augmented_view(setup, UNLABELLED)
    guesses = guesses_of(setup, guessing, settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        logits = step.outputs[weak.name].logits
        guess = guesses(step, step.inputs[weak.name], logits)
        value = _hard_label_loss(logits, guess, step.streams[UNLABELLED].mask)
        ramp = objectives.linear_ramp(step.now.number + 1, settings.ramp_start, settings.ramp_end)
        return ramp.astype(value.dtype) * value, guess, logits

    return _method(setup, settings, guesses.term(TERM, (weak,), loss))


def _hard_label_loss(
    logits: Float[Array, "b K"], guess: Guess, mask: Bool[Array, " b"]
) -> Float[Array, ""]:
    """Return the mean cross-entropy of the guessed classes, 0 for rows that do not count."""
    losses = objectives.cross_entropy(logits, guess.labels)
    return objectives.batch_mean(losses, mask, guess.counted)


def _steps(setup: Setup, settings: Settings) -> Steps:
    """Return the local steps of a round."""
    size = settings.unlabelled_ratio * setup.batch_size
    bounds = (setup.max_labelled, setup.max_unlabelled)
    return passes(setup.batch_size, size, setup.local_epochs, *bounds)


def _ramped(step: Step, value: Array, rounds: int) -> Array:
    """Return g(r) times a loss."""
    ramp = objectives.consistency_ramp(step.now.number + 1, 1.0, rounds)
    return ramp.astype(value.dtype) * value


def _method(
    setup: Setup,
    settings: Settings,
    unsupervised: Term,
    supervised: Term | None = None,
    network: Network | None = None,
) -> Recipe:
    """Return a method with a supervised and an unsupervised term. A term without examples or
    without weight is left out.

    Args:
        setup: the run.
        settings: the method's own.
        unsupervised: term on stream "unlabelled", of weight 1.
        supervised: term on stream "labelled", of weight 1; cross-entropy by default.
        network: network that predicts, if the unsupervised term makes one; then this term is never
            left out. By default the global network, or its moving average.
    """
    supervised = (supervised or supervised_term(setup))._replace(weight=settings.labelled_weight)
    terms = (supervised,) if setup.max_labelled else ()
    there = setup.max_unlabelled + setup.max_labelled * settings.labelled_too
    if network is not None or (there and not is_zero(settings.unlabelled_weight)):
        terms = (*terms, unsupervised._replace(weight=settings.unlabelled_weight))
    return _method_of_terms(setup, settings, terms, supervised, network)


def _method_of_terms(
    setup: Setup,
    settings: Settings,
    terms: tuple[Term, ...],
    supervised: Term,
    network: Network | None = None,
) -> Recipe:
    """Return a method with these terms at the clients, and with the supervised one at a server with
    labelled examples.
    """
    at_server: tuple[Term, ...] = (
        (supervised._replace(name="server_supervised"),) if setup.max_server else ()
    )
    if not terms and not at_server:
        raise ValueError(
            "there is nothing to learn from: no client has a label, the server has none, and "
            "unlabelled examples are missing or have unlabelled_weight "
            f"{settings.unlabelled_weight!r}"
        )
    if not is_zero(settings.ema_decay):
        average = _moving_average_term(settings.ema_decay)
        network = teacher_network(AVERAGE)
        # The moving average uses the state at the end of the round.
        if at_server and not terms:
            at_server = (*at_server, average)
        else:
            terms = (*terms, average)
    server = None
    if at_server:
        epochs = labelled_epochs(
            settings.server_batch_size, settings.server_epochs, setup.max_server
        )
        server = Training(at_server, epochs)
    size = settings.unlabelled_ratio * setup.batch_size
    bounds = (setup.max_labelled, setup.max_unlabelled)
    sampler = paired_batches(
        setup.batch_size, size, _steps(setup, settings), *bounds, labelled_too=settings.labelled_too
    )
    clients = Training(terms, sampler) if terms else None
    stage = Stage(clients, server, when=("before",))
    return Recipe(setup, (stage,), network=network, needs=Needs(("labels", "server")))


def _moving_average_term(decay: float | Array) -> Term:
    """Return a term without a loss that keeps a moving average of the global model at the server,
    for prediction.

    After round t = 1, 2, .. the average g of the global networks f_t is d g + (1 - d) f_t with d =
    min(1 - 1/t, decay): the plain mean at first, so that the initial network has no influence.
    Batch statistics are averaged in the same way.
    """

    def follow(average: Teacher, outcome: RoundResult) -> Teacher:
        keep = objectives.teacher_decay(average.step, decay)
        new = (merged(outcome.after.params), outcome.after.model_state)
        old = (average.params, average.model_state)

        def mean(one: Array, other: Array) -> Array:
            return keep.astype(one.dtype) * one + (1.0 - keep).astype(one.dtype) * other

        params, model_state = jax.tree.map(mean, old, new)
        return Teacher(params, model_state, average.step + 1.0)

    server = AtServer(
        init=lambda key, params, model_state, clients: Teacher(params, model_state, jnp.zeros(())),
        participates=never,
        server_update=follow,
    )
    return Term(AVERAGE, (), lambda step: jnp.zeros(()), server=server)
