"""SemiFL: clients without any label and a server with a few, training in turns.

References:
    Diao, Ding, Tarokh, SemiFL: semi-supervised federated learning for unlabeled clients with alternate training,
    NeurIPS 2022, arXiv 2106.01432.
"""

from fedjax_ssl.federated import Method, Setup, Stage
from fedjax_ssl.methods.parts.alternating_training import alternating
from fedjax_ssl.methods.parts.confident_pseudo_labels import confident_epochs, confident_losses, confident_term


def semifl(
    setup: Setup,
    *,
    threshold: float = 0.95,
    mixup_alpha: float = 0.75,
    mix_weight: float = 1.0,
    server_batch_size: int = 10,
    server_epochs: int = 5,
    static_batch_norm: bool = True,
) -> Method:
    """SemiFL: confident pseudo-labels at the clients, then supervised training at the server, in every round.

    The paper's global momentum is `config.federated.name = "fedavgm"`, its clipping `config.optimizer.clip_norm = 1`,
    its strong augmentation `config.strong_augment`.

    Args:
        setup: the run.
        threshold: a pseudo-label is confident at it or above.
        mixup_alpha: of the Beta distribution of the mixing share, > 0.
        mix_weight: of the loss on mixtures; 0 leaves it out.
        server_batch_size: labelled examples per step at the server; the paper has 250 with more than 1000 labels.
        server_epochs: epochs per round at the server.
        static_batch_norm: statistics of batch norm layers by a pass over the data, see
            `fedjax_ssl.federated.static_batch_norm`.

    Raises:
        ValueError: for a setting outside these.
    """
    terms = (confident_term(setup, threshold, strict=False), *confident_losses(setup, 1.0, mix_weight, mixup_alpha))
    stage = Stage(terms, confident_epochs(setup.batch_size, setup.local_epochs))
    return alternating(setup, stage, server_batch_size, server_epochs, static_batch_norm, needs=("server",))
