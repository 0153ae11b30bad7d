"""ProxyFL: the rows of the classifier stand for the classes, at the clients and at the server.

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

Defaults are those of the authors' code; variant "paper" has the text's (docs/methods/proxyfl.md).

References:
    ProxyFL, CVPR 2026, arXiv 2602.21078, with appendices, and the authors' code.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Recipe, Setup, Step
from fedjax_ssl.methods.parts.consistency import UNLABELLED, strong_view
from fedjax_ssl.methods.parts.guess import Guess, Guessing, LabelsFrom, guesses_of
from fedjax_ssl.methods.parts.proxies import Contrast, Proxies, with_projections, with_proxies
from fedjax_ssl.methods.parts.settings import Count, CountOrZero, Decay, Positive, Share, Weight
from fedjax_ssl.methods.parts.terms import augmented_view, supervised_term
from fedjax_ssl.methods.parts.thresholds import Thresholds
from fedjax_ssl.methods.parts.whole_batches import RECOMMENDED as WHOLE_BATCHES
from fedjax_ssl.methods.parts.whole_batches import steps_per_epoch, whole_batches
from fedjax_ssl.objectives import Tuning, soft_label_divergence

RECOMMENDED = {"proxyfl": WHOLE_BATCHES}

# what the text and the code have differently
CODE = Contrast()
PAPER = Contrast(
    labels_from=LabelsFrom("global"),
    projection=False,
    true_classes=True,
    own_weights=True,
    both_views=False,
    least_similar=-1.0,
    mean_by_kind=True,
    prior_decay=None,
)


@checked
@dataclass(frozen=True)
class ProxyFL:
    """Settings of ProxyFL.

    Attributes:
        variant: "code": the authors' code; "paper": its text, where they differ.
        threshold: tau.
        unlabelled_weight: w_u.
        contrast_weight: w_c; 0: no contrast.
        projection: features and rows of the head are compared through A, a and B; None: as the
            variant has it, "code" through them.
        unlabelled_ratio: unlabelled examples per labelled one in a step.
        labelled_copies: times that a labelled example counts in a client's weight; 2000 in the
            code, by a side effect.
        prior_decay: of the prior by round; in "paper" the prior is of the last round alone.
        tuning_epochs: passes over the clients' rows in which the server tunes its own; 0: none. 10
            for 100 classes.
        tuning_rate: its learning rate.
        tuning_batch_size: rows in one of its steps.
        tuning_cap: the most that delta may be.
        tuning_anchor: what is told from rows of other classes: a "client"'s row from the tuned
            ones, or a tuned row of the "server" from the client's, without delta; None: as the
            variant has it, "code" the client's.
    """

    variant: Literal["code", "paper"] = "code"
    threshold: Share = 0.95
    unlabelled_weight: Weight = 1.0
    contrast_weight: Weight = 1.0
    projection: bool | None = None
    unlabelled_ratio: Count = 2
    labelled_copies: Weight = 1.0
    prior_decay: Decay = 0.99
    tuning_epochs: CountOrZero = 100
    tuning_rate: Positive = 0.005
    tuning_batch_size: Count = 4
    tuning_cap: Positive = 100.0
    tuning_anchor: Literal["client", "server"] | None = None

    @property
    def contrast(self) -> Contrast:
        """Form of the contrast."""
        form = CODE._replace(prior_decay=self.prior_decay) if self.variant == "code" else PAPER
        projection = form.projection if self.projection is None else self.projection
        return form._replace(threshold=self.threshold, projection=projection)

    @property
    def tuning(self) -> Tuning:
        """Form of the tuning."""
        anchor = self.tuning_anchor or ("client" if self.variant == "code" else "server")
        how = self.tuning_rate, self.tuning_batch_size, self.tuning_cap
        return Tuning(self.tuning_epochs, *how, anchor)


def proxyfl(setup: Setup, settings: ProxyFL, thresholds: Thresholds) -> Recipe:
    """ProxyFL: unsure examples learn too, from the classes that they may be of; the server tunes
    its classifier by those of the clients.

    A local epoch has as many steps as whole batches of `config.optimizer.batch_size` fit into a
    client's examples; a client with fewer takes none.

    Args:
        setup: the run.
        settings: the method's own.
        thresholds: by which rule an example's own loss counts; the contrast keeps `threshold`.

    Raises:
        ValueError: for a setting outside these, a single class, a network without rows in its head
            or clients that train alone.
    """
    contrast = settings.contrast
    proxies = Proxies(settings.contrast_weight, settings.tuning_epochs)
    if proxies.contrasts and contrast.projection:
        setup = with_projections(setup)
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)
    how = Guessing(**vars(contrast.labels_from), **vars(thresholds))
    guesses = guesses_of(setup, how, settings.threshold, labelled_too=True)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        guess = guesses(step, step.inputs[weak.name], step.outputs[weak.name].logits)
        learns = step.outputs[strong.name].logits
        targets = jax.nn.one_hot(guess.labels, setup.num_classes, dtype=learns.dtype)
        mask = step.streams[UNLABELLED].mask
        over = mask & guess.counted.astype(bool) if settings.variant == "paper" else mask
        return soft_label_divergence(learns, targets, over, guess.counted), guess, learns

    unsupervised = guesses.term("pseudo-labels", (weak, strong), loss)
    terms = supervised_term(setup), unsupervised._replace(weight=settings.unlabelled_weight)
    stage = whole_batches(setup, terms, settings.unlabelled_ratio, settings.labelled_copies)
    return with_proxies(
        Recipe(setup, (stage,)),
        proxies,
        contrast,
        settings.tuning,
        partial(steps_per_epoch, setup),
        weight=settings.unlabelled_weight,
    )
