"""FedLab: its serial trainer, which trains a round's clients in turn in one process, and its
averaging.
"""

import sys

import torch
from common import Clock, load, torch_accuracy, torch_data, torch_network, torch_steps
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.client.trainer import SerialClientTrainer


class Trainer(SerialClientTrainer):
    """Local steps of the plan on FedLab's serialized parameters."""

    def set_up(self, plan, data):
        self.plan = plan
        self.data = data
        self.steps = []
        self.cache = []

    @property
    def uplink_package(self):
        package = self.cache
        self.cache = []
        return package

    def local_process(self, payload, id_list):
        for client in id_list:
            self.set_model(payload[0])
            torch_steps(
                self._model,
                self.plan,
                self.data,
                [torch.from_numpy(rows) for rows in self.steps[client]],
            )
            self.cache.append([self.model_parameters])


def main() -> None:
    """Trains the plan."""
    torch.manual_seed(0)
    plan = load(sys.argv[1])
    clock = Clock(plan)
    data = torch_data(plan)
    cohort = len(plan.rounds[0])
    handler = SyncServerHandler(torch_network(plan), len(plan.rounds), sample_ratio=1.0)
    handler.num_clients = cohort
    trainer = Trainer(torch_network(plan), cohort, cuda=False)
    trainer.set_up(plan, data)
    for clients in plan.rounds:
        trainer.steps = clients
        trainer.local_process(handler.downlink_package, range(len(clients)))
        for package in trainer.uplink_package:
            handler.load(package)
        clock.lap(lambda: torch_accuracy(handler.model, data))
    clock.write()


main()
