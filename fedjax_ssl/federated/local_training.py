"""What local training is, the same for every client and round."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_ssl.federated.local_optimizer import LocalOptimizer
from fedjax_ssl.federated.method import Client, Params
from fedjax_ssl.federated.optimizers import FederatedOptimizer
from fedjax_ssl.federated.participation import Participation
from fedjax_ssl.federated.uploads.transform import UploadTransform
from fedjax_ssl.models import Model

if TYPE_CHECKING:
    from fedjax_ssl.federated.uploads.sums import Summation

PyTree = Any


class LocalTraining(NamedTuple):
    """Parts of local training that are the same for every client and round."""

    model: Model
    combine: Callable[[Params], PyTree]  # parameter groups -> the network's parameters
    groups: tuple[str, ...]  # order of the phases within a local step
    private: tuple[str, ...]  # groups that clients keep to themselves
    optimizer: LocalOptimizer
    keep_optimizer: bool  # its state lives on, at the client
    keep_by_slot: bool  # ... or in the slot of the cohort that a client fills
    federated_optimizer: FederatedOptimizer
    uploads: UploadTransform  # between what clients send and the sum of it
    receive: Callable[[Client, Params], Params] | None = None
    # ^ what a client has of what is sent; None: all of it
    weighting: str = "uniform"
    # ^ name of the weight in the average, where a kind of clients has no own
    keep_models: bool = False  # the clients' models are stacked, too
    average_optimizer: bool = False
    # ^ its state is averaged at the server, for the groups that are shared
    own_statistics: bool = False  # batch statistics stay at each client, and are never averaged
    unsent: Mapping[str, int] = MappingProxyType({})  # as in `ParameterGroups`
    summation: "Summation | None" = None  # as in `Setup`
    participation: Participation | None = None
    # ^ how reliable clients are; None: all of them are

    @property
    def shared(self) -> tuple[str, ...]:
        """Groups that are sent and averaged."""
        return tuple(group for group in self.groups if group not in self.private)
