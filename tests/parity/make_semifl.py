"""Makes fixtures/semifl.npz from the authors' code: python make_semifl.py CHECKOUT OUT.npz"""

import os
import sys
from pathlib import Path

import numpy as np
import torch

from reference_torch import (  # isort: skip
    CLASSES,
    Silent,
    examples,
    from_torch,
    tiny_body,
    tiny_forward,
    to_torch,
    weights,
)

SHARE = 0.3
CLIENT_BATCH = 8
SERVER_BATCH = 4
EPOCHS = 2
ROUNDS = 3
THRESHOLD = 0.6
RATE = 0.1
SERVER = 7
CLIENTS = (14, 12, 9, 3)


def main(checkout: str, out: str) -> None:
    source = Path(checkout) / "src"
    os.chdir(source)
    sys.path.insert(0, str(source))
    import data as their_data
    import models
    from config import cfg
    from modules import Client, Server

    optimizer = {
        "optimizer_name": "SGD",
        "lr": RATE,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "nesterov": True,
    }
    cfg.update(
        device="cpu",
        seed=0,
        num_workers=0,
        model_name="tiny",
        loss_mode=f"fix@{THRESHOLD}-mix",
        threshold=THRESHOLD,
        alpha=0.75,
        local_epoch=[str(EPOCHS)] * 2,
        server={
            "shuffle": {"train": False},
            "batch_size": {"train": SERVER_BATCH},
            "num_epochs": EPOCHS,
        },
        client={
            "shuffle": {"train": False},
            "batch_size": {"train": CLIENT_BATCH},
            "num_epochs": EPOCHS,
        },
        local=optimizer,
    )
    cfg["global"] = {
        **{"batch_size": {"train": 250, "test": 250}, "shuffle": {"train": False}},
        **{"optimizer_name": "SGD", "lr": 1, "momentum": 0.5, "weight_decay": 0, "nesterov": False},
    }

    class Tiny(models.WideResNet):  # their losses, another network
        def __init__(self):
            torch.nn.Module.__init__(self)
            tiny_body(self)

        f = tiny_forward

    def tiny(momentum=None, track=False):
        model = Tiny()
        model.apply(
            lambda m: models.make_batchnorm(m, momentum=momentum, track_running_stats=track)
        )
        return model

    models.tiny = tiny

    class Examples(torch.utils.data.Dataset):
        def __init__(self, x, y):
            self.data = [torch.tensor(row) for row in x]
            self.target = [int(label) for label in y]
            self.other = {"id": list(range(len(y)))}
            self.transform = None

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            x = self.data[index][:, None, None]
            return {"data": x, "aug": x.flip(0), "target": torch.tensor(self.target[index])}

    their_data.make_dataset_normal = lambda dataset: (dataset, dataset.transform)

    # the partner of slot j in step s is example (s * batch + j) % n
    class Partners(their_data.MixDataset):
        asked = 0

        def __getitem__(self, index):
            epoch, slot = divmod(self.asked, self.size)
            self.asked += 1
            step = epoch * -(-self.size // CLIENT_BATCH) + slot // CLIENT_BATCH
            found = self.dataset[(step * CLIENT_BATCH + slot % CLIENT_BATCH) % len(self.dataset)]
            return {"data": found["data"], "target": found["target"]}

    import modules.modules as theirs

    theirs.MixDataset = Partners

    rng = np.random.default_rng(34)
    inputs, labels = examples(rng, SERVER + sum(CLIENTS))
    first = weights(rng, 0.7)
    server_data = Examples(inputs[:SERVER], labels[:SERVER])
    client_data = Examples(inputs[SERVER:], labels[SERVER:])
    for_norm = their_data.make_batchnorm_dataset_su(server_data, client_data)
    starts = np.cumsum([0, *CLIENTS])
    parts = [range(starts[i], starts[i + 1]) for i in range(len(CLIENTS))]

    def train(reset: bool) -> dict[str, np.ndarray]:
        model = tiny()
        found = {}
        model.load_state_dict(to_torch(first))
        server = Server(model)
        clients = [Client(i, model, None) for i in range(len(CLIENTS))]
        for client in clients:
            client.beta = type("Share", (), {"sample": lambda self: torch.tensor([SHARE])})()
        fresh = server.optimizer_state_dict
        for number in range(ROUNDS):
            rate = RATE * 0.5 * (1 + np.cos(np.pi * number / ROUNDS))
            for client in clients:
                client.active = True
            server.distribute(clients, for_norm)
            confident = []
            for client, rows in zip(clients, parts, strict=True):
                own = their_data.separate_dataset(client_data, rows)
                pair = client.make_dataset(own, Silent(), Silent())
                client.active = pair is not None
                confident.append(0 if pair is None else len(pair[0]))
                if pair is not None:
                    client.train(pair, rate, Silent(), Silent())
            server.update(clients)
            found |= from_torch(server.model_state_dict, f"clients{number}/")
            if reset:
                server.optimizer_state_dict = fresh
            server.train(server_data, rate, Silent(), Silent())
            found |= from_torch(server.model_state_dict, f"server{number}/")
            model = tiny()
            model.load_state_dict(server.model_state_dict)
            tested = their_data.make_batchnorm_stats(for_norm, model, "global")
            found |= {
                k: v
                for k, v in from_torch(tested.state_dict(), f"server{number}/").items()
                if "norm1" in k
            }
            found[f"confident{number}"] = np.array(confident)
            with torch.no_grad():
                logits = tested.eval().f(torch.tensor(inputs)[:, :, None, None])
            found[f"log_probs{number}"] = torch.log_softmax(logits, 1).numpy()
        return found

    saved = {
        "inputs": inputs,
        "labels": labels,
        "sizes": np.array(CLIENTS),
        "server": np.array(SERVER),
    }
    saved |= {f"first/{name}": value for name, value in first.items()}
    saved |= {f"reset/{name}": value for name, value in train(reset=True).items()}
    saved |= {f"kept/{name}": value for name, value in train(reset=False).items()}
    assert labels.max() + 1 == CLASSES
    np.savez_compressed(out, **saved)
    print({name: value.tolist() for name, value in saved.items() if "confident" in name})


if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
