"""Setup of a run that recipes receive."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.federated.cohort import CohortSampler, sample_cohort
from fedjax_ssl.federated.contract import Client
from fedjax_ssl.federated.local_optimizer import LocalOptimizer
from fedjax_ssl.federated.optimizers import FederatedOptimizer
from fedjax_ssl.models import Model
from fedjax_ssl.objectives import RowLoss, cross_entropy

if TYPE_CHECKING:
    from fedjax_ssl.federated.participation import Participation
    from fedjax_ssl.federated.uploads.sums import Combine
    from fedjax_ssl.federated.uploads.transform import UploadTransform

LearningRate = Callable[[Int[Array, ""]], Float[Array, ""]]  # round -> learning rate
WEIGHTINGS: dict[str, Callable[[Client], Float[Array, ""]]] = {
    "uniform": lambda client: jnp.ones(()),
    "examples": lambda client: client.num_examples.astype(jnp.result_type(float)),
    "labelled": lambda client: client.num_labelled.astype(jnp.result_type(float)),
}


class Facts(NamedTuple):
    """Sizes of a run, for builders of what stands around a method."""

    num_clients: int  # clients in the federation
    cohort_size: int  # clients in a round
    rounds: int | None  # None: not known


class Setup(NamedTuple):
    """Choices of a run that every method needs; a recipe takes them together with its own settings.

    Where clients run, on which devices and in how much memory is not among it: that is
    `Execution`'s.

    Example:
        >>> def halved(setup: fs.Setup):
        ...     "FedAvg with half as many local epochs as the run says."
        ...     epochs = max(setup.local_epochs // 2, 1)
        ...     return fs.methods.recipe("fedavg", setup._replace(local_epochs=epochs))
        >>> _ = fs.register("method", "halved", halved)
        >>> fs.load_config("digits", {"method.name": "halved"}).method.name
        'halved'
    """

    model: Model  # the network
    normalize: Callable[[Array], Array]  # raw inputs -> float inputs of the network
    augment: Callable[[Array, Array], Array]
    # ^ (key, raw images) -> raw images: the weak augmentation
    federated_optimizer: FederatedOptimizer  # how local training is corrected and averaged
    local_optimizer: LocalOptimizer  # optimizer of the clients' local steps
    learning_rate: LearningRate  # by round
    num_classes: int  # K
    max_labelled: int  # bounds over clients, from `FederatedData`
    max_unlabelled: int  # examples without a class label of a client
    max_known: int  # examples with a class label or a weak label
    max_server: int  # labelled examples at the server
    cohort_size: int  # clients in a round
    batch_size: int  # examples in a local step
    local_epochs: int  # passes over the examples of a client in a round
    weighting: str = "uniform"  # weight of a client in the average: a name of `WEIGHTINGS`
    keep_optimizer: bool = False  # the state of local optimizers lives on between rounds
    average_optimizer: bool = False
    # ^ clients start from the mean of the last cohort's states at its end
    rounds: int | None = None  # rounds of the run; None: not known
    evaluation_batch_size: int = 512  # examples that are predicted at once
    strong_augment: Callable[[Array, Array], Array] | None = None
    # ^ like `augment`; None: the weak one
    stored_views: int | None = None
    # ^ weak views of an example, from which `augment` draws; None: it makes them, any number
    min_labelled: int = 1
    # ^ bound over the clients that have labels, from `FederatedData`, as is the next one
    num_parts: int = 1  # in which clients' unlabelled examples come, one after another
    draw_cohort: CohortSampler = sample_cohort  # draws the clients of a round
    local_steps: int | None = None
    # ^ a round, in place of `local_epochs`; batches then go on from round to round
    loss: RowLoss = cross_entropy
    # ^ loss of labelled rows: (logits, targets) -> losses [n], 0 where the target is -1
    normalize_test: Callable[[Array], Array] | None = None
    # ^ as `normalize`, of what is predicted; None: the same
    local_scores: bool = False  # rounds log how well the cohort's own models do
    uploads: tuple["UploadTransform", ...] = ()  # between what clients send and the sum of it
    combine_uploads: "Combine | None" = None
    # ^ how uploads become one; None: by their sum, times their weights
    participation: "Participation | None" = None
    # ^ how reliable clients are; None: all of them are there and get through
