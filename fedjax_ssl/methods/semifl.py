"""SemiFL: clients without any label and a server with a few, training in turns.

References:
    Diao, Ding, Tarokh, SemiFL: semi-supervised federated learning for unlabeled clients with alternate training,
    NeurIPS 2022, arXiv 2106.01432.
"""

from jaxtyping import Array

from fedjax_ssl.federated import Method, Setup, Stage, Term, federated_method
from fedjax_ssl.federated.static_batch_norm import with_static_batch_norm
from fedjax_ssl.methods.confident import confident_epochs, confident_term, fix_term, mix_term
from fedjax_ssl.methods.single import server_training


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


def confident_losses(
    setup: Setup, fix_weight: float | Array, mix_weight: float | Array, mixup_alpha: float | Array
) -> tuple[Term, ...]:
    """The losses on confident examples; one with weight 0 is left out, and its forward pass with it.

    Raises:
        ValueError: a negative weight, or a `mixup_alpha` that is not positive.
    """
    check_weights(fix_weight=fix_weight, mix_weight=mix_weight)
    if isinstance(mixup_alpha, (int, float)) and not mixup_alpha > 0:
        raise ValueError(f"mixup_alpha is {mixup_alpha}; it must be > 0")
    terms = (fix_term(setup, fix_weight), mix_term(setup, mix_weight, mixup_alpha))
    return tuple(term for term in terms if not is_zero(term.weight))


def alternating(
    setup: Setup,
    stage: Stage,
    server_batch_size: int,
    server_epochs: int,
    static_batch_norm: bool,
    needs: tuple[str, ...],
    server_first: bool = False,
) -> Method:
    """Rounds of a stage in which the server trains after the clients, where it has examples.

    Args:
        setup: the run.
        stage: of the clients.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.
        static_batch_norm: whether statistics of batch norm layers come from a pass over the data.
        needs: what the method learns from.
        server_first: the server alone trains in the first round.
    """
    server = server_training(setup, server_batch_size, server_epochs)
    stages: tuple[Stage, ...] = (stage._replace(server=server) if setup.max_server else stage,)
    if server_first and setup.max_server:
        stages = (Stage((), None, rounds=1, server=server), *stages)
    method = federated_method(setup, stages, needs=needs)
    return with_static_batch_norm(method, setup.model, setup.normalize) if static_batch_norm else method


def check_weights(**weights: float | Array) -> None:
    """Raises ValueError for a negative weight; a traced one cannot be looked at."""
    for name, weight in weights.items():
        if isinstance(weight, (int, float)) and weight < 0:
            raise ValueError(f"{name} is {weight}; it must be >= 0")


def is_zero(weight: float | Array) -> bool:
    """Whether a weight is known to be 0; a traced one is not."""
    return isinstance(weight, (int, float)) and weight == 0
