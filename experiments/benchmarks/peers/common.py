"""The protocol between `peers.py` and a peer, which needs NumPy alone: the plan, the clock and the
networks.

    python torch_loop.py PLAN.npz RESULT.json

A peer trains `plan.rounds` and calls `clock.lap(scores)` when rounds are done. Evaluation is
outside of the time.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Plan(NamedTuple):
    """What is trained on, in NumPy."""

    name: str  # of the workload
    images: np.ndarray  # [n, h, w, c] float32, of the clients that take part
    labels: np.ndarray  # [n] int64
    rounds: list[list[list[np.ndarray]]]  # round -> client -> local step -> rows
    num_classes: int
    learning_rate: float
    batch_size: int
    every: int  # rounds between two evaluations

    def examples(self) -> int:
        """Rows that enter a loss, in all rounds."""
        return sum(len(rows) for clients in self.rounds for steps in clients for rows in steps)

    def counts(self) -> tuple[int, int]:
        """(client updates, local steps), in all rounds."""
        clients = [steps for clients in self.rounds for steps in clients]
        return len(clients), sum(len(steps) for steps in clients)

    def save(self, path: Any) -> None:
        """Write it as an .npz file: a step is the round, the client in the cohort and the number
        of rows.
        """
        steps = [
            (number, client, len(rows))
            for number, clients in enumerate(self.rounds)
            for client, steps in enumerate(clients)
            for rows in steps
        ]
        rows = np.concatenate(
            [rows for clients in self.rounds for steps in clients for rows in steps]
        )
        facts = json.dumps(
            [self.name, self.num_classes, self.learning_rate, self.batch_size, self.every]
        )
        np.savez(path, images=self.images, labels=self.labels, steps=steps, rows=rows, facts=facts)


def load(path: Any) -> Plan:
    """Read what `Plan.save` wrote."""
    with np.load(path) as file:
        images, labels, steps, rows = (file[name] for name in ("images", "labels", "steps", "rows"))
        name, *facts = json.loads(str(file["facts"]))
    rounds: list[list[list[np.ndarray]]] = [[] for _ in range(int(steps[-1, 0]) + 1)]
    for (number, client, _), part in zip(
        steps, np.split(rows, np.cumsum(steps[:, 2])[:-1]), strict=True
    ):
        if client == len(rounds[number]):
            rounds[number].append([])
        rounds[number][client].append(part)
    return Plan(name, images, labels, rounds, *facts)


class Clock:
    """Times rounds from the start of the process; what is between two laps and no training does
    not count.
    """

    def __init__(self, plan: Plan) -> None:
        """Count what came before, imports too, as a part of the first round."""
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="utf-8") as file:
            alive = float(file.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        self._plan = plan
        self._start = time.perf_counter() - alive
        self._rounds = 0
        self._trained = 0.0
        self.laps: list[tuple[int, float, float]] = []  # rounds, seconds until then, accuracy

    def lap(self, evaluate: Callable[[], float], rounds: int = 1) -> None:
        """Count rounds that are done; `evaluate` gives the accuracy on all images of the plan."""
        self._rounds += rounds
        now = time.perf_counter()
        if self._rounds == rounds or self._rounds % self._plan.every == 0:
            self.laps.append((self._rounds, self._trained + now - self._start, evaluate()))
            self._trained = self.laps[-1][1]
            self._start = time.perf_counter()

    def write(self, **facts: Any) -> None:
        """Write the result where the command line says."""
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump({"laps": self.laps, **facts}, file)


def torch_device() -> Any:
    """The GPU where PyTorch has one, with products in TF32 as ours; else the processor."""
    import torch

    torch.set_float32_matmul_precision("high")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torch_wait() -> None:
    """Wait for what a GPU computes: it runs behind Python."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def torch_network(plan: Plan) -> Any:
    """The network of a workload in PyTorch."""
    return _torch_layers(plan).to(torch_device())


def _torch_layers(plan: Plan) -> Any:
    import torch
    from torch import nn

    if plan.name == "W2":
        torch.set_num_threads(1)  # faster than one per core
        return nn.Sequential(nn.Flatten(), nn.Linear(784, plan.num_classes))
    side, _, channels = plan.images.shape[1:]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((side - 4) // 2) ** 2, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, plan.num_classes),
    )


def torch_data(plan: Plan) -> tuple[Any, Any]:
    """Images [n, c, h, w] and labels as tensors."""
    import torch

    device = torch_device()
    images = torch.tensor(plan.images).permute(0, 3, 1, 2).contiguous()
    return images.to(device), torch.tensor(plan.labels).to(device)


def torch_accuracy(network: Any, data: tuple[Any, Any]) -> float:
    """Share of the images that a network classifies as labelled."""
    import torch

    training = network.training
    network.eval()
    with torch.no_grad():
        parts = zip(data[0].split(500), data[1].split(500), strict=True)
        right = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in parts)
    network.train(training)
    return right / len(data[1])


def torch_steps(network: Any, plan: Plan, data: tuple[Any, Any], steps: list[Any]) -> None:
    """Take a client's local steps of plain SGD."""
    import torch

    optimizer = torch.optim.SGD(network.parameters(), lr=plan.learning_rate)
    for rows in steps:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
