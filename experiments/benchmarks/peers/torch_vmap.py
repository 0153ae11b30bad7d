"""PyTorch with all clients of a round at once by `torch.func.vmap`; they take equally many steps."""

import sys

import numpy as np
import torch
from common import Clock, load, torch_accuracy, torch_data, torch_network, torch_wait
from torch.func import functional_call, grad, vmap


def main() -> None:
    """Trains the plan: a copy of the parameters for each client, a gradient of all in one call."""
    torch.manual_seed(0)
    plan = load(sys.argv[1])
    clock = Clock(plan)
    network = torch_network(plan)
    images, labels = torch_data(plan)
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(own: dict, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network, own, (inputs,))
        return torch.nn.functional.cross_entropy(logits, targets)

    gradients = vmap(grad(loss), randomness="different")
    for clients in plan.rounds:
        own = {name: value.expand(len(clients), *value.shape) for name, value in parameters.items()}
        for step in zip(*clients, strict=True):
            rows = torch.from_numpy(np.stack(step))
            slopes = gradients(own, images[rows], labels[rows])
            own = {name: value - plan.learning_rate * slopes[name] for name, value in own.items()}
        parameters = {name: value.mean(0) for name, value in own.items()}
        network.load_state_dict(parameters)
        torch_wait()
        clock.lap(lambda: torch_accuracy(network, (images, labels)))
    clock.write()


main()
