"""BlazeFL: its federated averaging over a pool of threads, one per core, with one thread of
PyTorch each.
"""

import os
import sys

import torch
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from common import Clock, load, torch_accuracy, torch_data, torch_network


class Selector:
    """Gives the network of the plan."""

    def __init__(self, plan):
        self.plan = plan

    def select_model(self, name):
        return torch_network(self.plan)


class Clients:
    """Gives every client of the round its batches of the plan."""

    def __init__(self, plan, data):
        self.plan = plan
        self.data = data
        self.round = 0

    def get_dataloader(self, type_, cid, batch_size=None, generator=None):
        images, labels = self.data
        return [
            (images[rows], labels[rows])
            for rows in map(torch.from_numpy, self.plan.rounds[self.round][cid])
        ]


def main() -> None:
    """Trains the plan."""
    torch.manual_seed(0)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    plan = load(sys.argv[1])
    clock = Clock(plan)
    data = torch_data(plan)
    cohort = len(plan.rounds[0])
    clients = Clients(plan, data)
    common = {
        "model_selector": Selector(plan),
        "model_name": "plan",
        "dataset": clients,
        "num_clients": cohort,
        "device": "cpu",
        "batch_size": plan.batch_size,
        "seed": 0,
    }
    handler = FedAvgBaseServerHandler(global_round=len(plan.rounds), sample_ratio=1.0, **common)
    trainer = FedAvgThreadPoolClientTrainer(
        epochs=1, lr=plan.learning_rate, num_parallels=cores, **common
    )
    for number in range(len(plan.rounds)):
        clients.round = number
        trainer.local_process(handler.downlink_package(), handler.sample_clients())
        for package in trainer.uplink_package():
            handler.load(package)
        clock.lap(lambda: torch_accuracy(handler.model, data))
    clock.write()


main()
