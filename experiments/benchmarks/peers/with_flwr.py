"""Flower: its simulation by Ray with a worker per core of one thread each, and its FedAvg."""

import functools
import logging
import os
import sys

import torch
from common import Clock, load, torch_accuracy, torch_data, torch_network, torch_steps
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation


@functools.cache
def prepared() -> tuple:
    """Plan, tensors and a network, once per process."""
    plan = load(os.environ["PEERS_PLAN"])
    return plan, torch_data(plan), torch_network(plan)


def values(network):
    """Parameters as arrays."""
    return [value.numpy() for value in network.state_dict().values()]


def put(network, arrays):
    """Load parameters from arrays."""
    names = network.state_dict()
    network.load_state_dict(
        {name: torch.tensor(array) for name, array in zip(names, arrays, strict=True)}
    )


class Client(NumPyClient):
    """A client of the cohort, which is another one of the plan in every round."""

    def __init__(self, place: int) -> None:
        self.place = place

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        plan, data, network = prepared()
        put(network, parameters)
        steps = plan.rounds[int(config["round"]) - 1][self.place]
        torch_steps(network, plan, data, [torch.from_numpy(rows) for rows in steps])
        return values(network), 1, {}


def main() -> None:
    """Trains the plan."""
    logging.disable(logging.INFO)
    # Ray's workers import this module by its name
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ |= {"PEERS_PLAN": os.path.abspath(sys.argv[1]), "PYTHONPATH": here}
    torch.manual_seed(0)
    plan, data, network = prepared()
    clock = Clock(plan)
    cohort = len(plan.rounds[0])

    def evaluate(number, parameters, config):
        put(network, parameters)
        if number:
            clock.lap(lambda: torch_accuracy(network, data))

    def server(context):
        strategy = FedAvg(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=cohort,
            min_available_clients=cohort,
            initial_parameters=ndarrays_to_parameters(values(network)),
            evaluate_fn=evaluate,
            on_fit_config_fn=lambda number: {"round": number},
        )
        return ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=len(plan.rounds))
        )

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(
            client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()
        ),
        num_supernodes=cohort,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    clock.write()


if __name__ == "__main__":
    import with_flwr

    with_flwr.main()
