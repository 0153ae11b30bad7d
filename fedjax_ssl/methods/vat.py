"""Virtual adversarial training, federated: predictions should not change within a small ball around an example.

With the predictions p(x), the perturbation r of length epsilon that changes them most, B_U examples, and weights w_s,
w_u, w_e, a local step minimizes

    w_s 1/B sum over labelled CE(y, p(x)) + w_u 1/B_U sum over all [KL(p(x) || p(x + r)) + w_e H(p(x))],

where the first p(x) of the divergence is a constant.

References:
    Miyato et al., Virtual adversarial training: a regularization method for supervised and semi-supervised learning,
    TPAMI 2019, arXiv 1704.03976: equations 5 to 8, algorithm 1; w_u = 1, one power iteration. With w_e = 1 (entropy
    minimization, section 4.3) it is the paper's VAT+EntMin.
"""

from jaxtyping import Array

from fedjax_ssl.checks import check_numbers, check_weights, is_zero
from fedjax_ssl.federated import Method, Setup, Step, Term
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.adversarial import adversarial_loss
from fedjax_ssl.methods.parts.consistency_training import CONSISTENCY, UNLABELLED, Shared, consistency_method
from fedjax_ssl.objectives import mean_entropy


def vat(
    setup: Setup,
    *,
    radius: float | Array = 8.0,
    entropy_weight: float | Array = 0.0,
    unlabelled_weight: float | Array = 1.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 4,
    labelled_too: bool = True,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """Virtual adversarial training at the clients, or at clients without labels beside a server that has some.

    Args:
        setup: the run.
        radius: epsilon, over all numbers of an input as the network sees it. The paper's on CIFAR-10 (whitened) without
            augmentation is 8, on SVHN 2.5; it has to fit the data.
        entropy_weight: w_e.
        unlabelled_weight: w_u.
        labelled_weight: w_s.
        unlabelled_ratio: examples of the adversarial loss per labelled one in a step; the paper has batches of 32 and
            128.
        labelled_too: the adversarial loss is about labelled examples too, as in the paper.
        ema_decay: as in `fixmatch`, like the next three.
        server_turn: when the server trains.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_numbers("(0, inf)", radius=radius)
    check_weights(entropy_weight=entropy_weight)
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

    def loss(step: Step) -> Array:
        batch = step.streams[UNLABELLED]
        # Passes of its own, which leave the running statistics of batch norm alone, as in the authors' code.
        inputs = setup.normalize(setup.augment(named_key(step.key, "view"), batch.inputs))
        found = adversarial_loss(setup, step, inputs, batch.mask, radius)
        if is_zero(entropy_weight):
            return found.loss
        return found.loss + entropy_weight * mean_entropy(found.logits, batch.mask)

    return consistency_method(setup, shared, Term(CONSISTENCY, (), loss))
