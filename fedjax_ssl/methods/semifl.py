"""SemiFL: clients without labels and a server with a few, training alternately.

A round, with f_W the network that a client receives, a the weak and A the strong augmentation:

1. Every client of the cohort labels its examples: p = softmax f_W(a(x)), y = argmax p. Examples
   with max p >= tau are its set "fix"; a client with an empty set skips the round.
2. Local epochs over "fix". Every batch has a partner of the same size, "mix", drawn with
   replacement from all examples of the client, and one share s ~ Beta(alpha, alpha). With x_s = s
   a(x_fix) + (1 - s) a(x_mix), the loss is

       CE(f(A(x_fix)), y_fix) + mix_weight [s CE(f(x_s), y_fix) + (1 - s) CE(f(x_s), y_mix)].

3. The mean of the clients' changes is a step of the federated optimizer.
4. The server trains on its labelled examples: CE(f(a(x)), y).

`single`, the lower baseline, has step 4 alone.

References:
    Diao, Ding, Tarokh, SemiFL: semi-supervised federated learning for unlabeled clients with
    alternate training, NeurIPS 2022, arXiv 2106.01432: section 3 and algorithm 1.
"""

from dataclasses import dataclass

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Recipe, Setup, Stage, Training
from fedjax_ssl.federated.forward import separate_passes
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, alternating
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    above,
    confident_epochs,
    confident_losses,
    confident_term,
)
from fedjax_ssl.methods.parts.recommended import AT_SERVER
from fedjax_ssl.methods.parts.setting_types import BetaParameter, Share, Weight

RECOMMENDED = {"semifl": {"server": AT_SERVER}, "single": {"server": AT_SERVER}}


@checked
@dataclass(frozen=True)
class SemiFL(ServerTurn):
    """Settings of SemiFL.

    Attributes:
        threshold: tau.
        mixup_alpha: alpha of the Beta distribution, > 0.
        mix_weight: weight of the loss on mixtures; 0 leaves it out.
        server_batch_size: labelled examples per step at the server; the paper has 250 with more
            than 1000 labels.
        separate_passes: A(x_fix) and x_s go through the network separately, as in the paper, so
            that batch norm sees the statistics of each alone; False: together, which is faster.
    """

    threshold: Share = 0.95
    mixup_alpha: BetaParameter = 0.75
    mix_weight: Weight = 1.0
    separate_passes: bool = False


def semifl(setup: Setup, settings: SemiFL) -> Recipe:
    """SemiFL: confident pseudo-labels at the clients, then supervised training at the server, in
    every round.

    The paper's global momentum is `config.federated.name = "fedavgm"`, its clipping
    `config.optimizer.clip_norm = 1`, its strong augmentation `config.strong_augment`.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these.
    """
    # Step 1, once per round, without a loss.
    labels = confident_term(setup, above(settings.threshold))
    losses = confident_losses(setup, 1.0, settings.mix_weight, settings.mixup_alpha)
    sampler = confident_epochs(setup.batch_size, setup.local_epochs)
    clients = Stage(
        Training(
            (labels, *losses),
            sampler,
            wrap_step=separate_passes if settings.separate_passes else None,
        )
    )
    return alternating(setup, clients, settings)


def single(setup: Setup, settings: ServerTurn) -> Recipe:
    """Supervised training at the server alone; the clients do nothing. A baseline: the clients'
    data should improve on it.

    Args:
        setup: the run.
        settings: the method's own.
    """
    return alternating(setup, Stage(None), settings)
