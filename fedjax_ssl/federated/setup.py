"""Setup of a run, for recipes."""

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
    """Sizes of a run, for builders of parts around a method."""

    num_clients: int  # clients in the federation
    cohort_size: int  # clients in a round
    rounds: int | None  # rounds of the run; None: unknown


class Setup(NamedTuple):
    """Choices of a run that every method needs; a recipe takes them together with its own settings.

    Devices, memory and the placement of clients are not part of it; see `Execution`.

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
    federated_optimizer: FederatedOptimizer  # correction of local training, and averaging
    local_optimizer: LocalOptimizer  # optimizer of the clients' local steps
    learning_rate: LearningRate  # round -> learning rate
    num_classes: int  # K
    max_labelled: int
    # ^ bound over clients, from `FederatedData`, of labelled examples; the next two likewise
    max_unlabelled: int  # examples without a class label of a client
    max_known: int  # examples with a class label or a weak label
    max_server: int  # labelled examples at the server
    cohort_size: int  # clients in a round
    batch_size: int  # examples in a local step
    local_epochs: int  # passes over the examples of a client in a round
    weighting: str = "uniform"  # weight of a client in the average: a name of `WEIGHTINGS`
    keep_optimizer: bool = False  # keep the state of local optimizers between rounds
    average_optimizer: bool = False
    # ^ clients start from the mean of the last cohort's final optimizer states
    rounds: int | None = None  # rounds of the run; None: unknown
    evaluation_batch_size: int = 512  # examples per forward pass in evaluation
    strong_augment: Callable[[Array, Array], Array] | None = None
    # ^ like `augment`; None: use the weak augmentation
    stored_views: int | None = None
    # ^ stored weak views of an example, from which `augment` draws; None: `augment` makes any
    # number
    min_labelled: int = 1
    # ^ bound over the clients with labels, from `FederatedData`; `num_parts` likewise
    num_parts: int = 1  # parts in which clients' unlabelled examples arrive, one after another
    draw_cohort: CohortSampler = sample_cohort  # draws the clients of a round
    local_steps: int | None = None
    # ^ local steps a round, in place of `local_epochs`; batches then continue from round to round
    loss: RowLoss = cross_entropy
    # ^ loss of labelled rows: (logits, targets) -> losses [n], 0 where the target is -1
    normalize_test: Callable[[Array], Array] | None = None
    # ^ like `normalize`, for prediction; None: the same function
    local_scores: bool = False  # log the accuracy of the cohort's own models in every round
    uploads: tuple["UploadTransform", ...] = ()
    # ^ transforms between the clients' uploads and their sum
    combine_uploads: "Combine | None" = None
    # ^ rule to combine uploads; None: their sum, times their weights
    participation: "Participation | None" = None
    # ^ reliability of clients; None: all are reliable
