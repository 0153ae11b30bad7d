"""pfl-research: its federated averaging over simulated users."""

import itertools
import sys

import torch
from common import Clock, load, torch_accuracy, torch_data, torch_network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


def main() -> None:
    """Trains the plan; a user is a client in a round, so that its batches are those of the plan."""
    torch.manual_seed(0)
    plan = load(sys.argv[1])
    clock = Clock(plan)
    network = torch_network(plan)
    data = torch_data(plan)
    users = [
        torch.cat([torch.from_numpy(rows) for rows in steps])
        for clients in plan.rounds
        for steps in clients
    ]
    network.loss = lambda images, labels: torch.nn.functional.cross_entropy(network(images), labels)
    network.metrics = lambda images, labels: {}
    order = itertools.cycle(range(len(users)))
    dataset = FederatedDataset(
        lambda user: Dataset((data[0][users[user]], data[1][users[user]])), lambda: next(order)
    )
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )

    class Laps(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.lap(lambda: torch_accuracy(network, data))
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(plan.rounds),
            evaluation_frequency=len(plan.rounds) + 1,
            train_cohort_size=len(plan.rounds[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=plan.learning_rate,
            local_batch_size=plan.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=500),
        callbacks=[Laps()],
    )
    clock.write()


main()
