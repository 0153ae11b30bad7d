"""A plain PyTorch loop: clients in turn on one network, whose results are averaged."""

import sys

import numpy as np
import torch
from common import Clock, load, torch_accuracy, torch_data, torch_network, torch_steps, torch_wait


def main() -> None:
    """Trains the plan with channels last where the network has convolutions: the faster format."""
    torch.manual_seed(0)
    plan = load(sys.argv[1])
    clock = Clock(plan)
    network = torch_network(plan)
    data = torch_data(plan)
    if plan.name != "W2":
        network = network.to(memory_format=torch.channels_last)
        data = (data[0].contiguous(memory_format=torch.channels_last), data[1])
    if "--from-start" in sys.argv:  # parameters from a file, to which the result goes
        with np.load(sys.argv[2]) as file:
            network.load_state_dict({name: torch.tensor(file[name]) for name in file})
    parameters = {name: value.detach().clone() for name, value in network.state_dict().items()}
    for clients in plan.rounds:
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for steps in clients:
            network.load_state_dict(parameters)
            torch_steps(network, plan, data, [torch.from_numpy(rows) for rows in steps])
            for name, value in network.state_dict().items():
                total[name] += value
        parameters = {name: value / len(clients) for name, value in total.items()}
        network.load_state_dict(parameters)
        torch_wait()
        clock.lap(lambda: torch_accuracy(network, data))
    if "--from-start" in sys.argv:
        np.savez(sys.argv[2], **{name: value.cpu().numpy() for name, value in parameters.items()})
    else:
        clock.write()


main()
