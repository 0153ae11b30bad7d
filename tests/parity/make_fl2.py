"""Makes fixtures/fl2.npz from the authors' code: python make_fl2.py CHECKOUT OUT.npz"""

import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

from reference_torch import (  # isort: skip
    CLASSES,
    FEATURES,
    Silent,
    examples,
    from_torch,
    tiny_body,
    tiny_forward,
    to_torch,
    weights,
)

CLIENT_BATCH = 8
EPOCHS = 2
PRETRAINING = 4
ROUNDS = 3
RATE = 0.1
RHO = 0.1
SERVER, CLIENTS = 13, (14, 12, 9)  # at the server in batches of 10


def main(checkout: str, out: str) -> None:
    source = Path(checkout) / "src"
    os.chdir(source)
    sys.path.insert(0, str(source))
    for absent in (
        "wandb",
        "skimage",
        "skimage.util",
        "plotly",
        "pyhessian",
        "medmnist",
        "progress",
        "progress.bar",
    ):
        sys.modules[absent] = MagicMock()
    from config import cfg

    cfg.update(
        device="cpu",
        num_workers=0,
        num_epochs=EPOCHS,
        ulb_batch_size=CLIENT_BATCH,
        lr=RATE,
        batch_size=10,
    )
    cfg["model"]["type"] = "tiny"
    cfg["data"].update(num_classes=CLASSES, img_shape=[FEATURES, 1, 1])
    cfg["control_sam"]["rho"] = RHO
    cfg["control_fl"]["num_clients"] = len(CLIENTS)
    import data as their_data
    import models
    from modules import Client, Server

    their_data.RandomSampler = lambda dataset, num_samples: torch.utils.data.SequentialSampler(
        dataset
    )

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            tiny_body(self)

        def forward(self, x):
            return {"logits": tiny_forward(self, x)}

    def tiny(momentum=None, track=False):
        model = Tiny()
        model.apply(
            lambda m: models.process_bn_layer(m, momentum=momentum, track_running_stats=track)
        )
        return model

    models.tiny = tiny

    class Examples(torch.utils.data.Dataset):  # what their data sets give, without images
        def __init__(self, x, y, unlabelled):
            self.data = torch.tensor(x)
            self.targets = torch.tensor(y)
            self.unlabelled = unlabelled
            self.pseudo_targets = torch.full((len(y),), -1)
            self.fix_pseudo_targets = torch.full((len(y),), -1)
            self.transform = None

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            x = self.data[index][:, None, None]
            if not self.unlabelled:
                return {"x_lb": x, "y_lb": self.targets[index]}
            labels = {
                "pseudo_y_ulb": self.pseudo_targets[index],
                "fix_pseudo_y_ulb": self.fix_pseudo_targets[index],
            }
            return {"x_ulb_w": x, "x_ulb_s": x.flip(0), "y_ulb": self.targets[index], **labels}

    rng = np.random.default_rng(SEED)
    inputs, labels = examples(rng, SERVER + sum(CLIENTS), 0.4)
    # the server's examples come class after class
    order = np.argsort(labels[:SERVER], kind="stable")
    inputs[:SERVER] = inputs[:SERVER][order]
    labels[:SERVER] = labels[:SERVER][order]
    first = weights(rng, 1.5)
    first["head/kernel"] *= 3  # sure of some examples
    labelled, unlabelled = (Examples(inputs[part], labels[part], later) for part, later in PARTS)
    dataset = {"train_lb": labelled, "train_ulb": unlabelled, "eval": labelled}
    starts = np.cumsum([0, *CLIENTS])
    own = [
        {
            "train_lb": [],
            "train_ulb": torch.utils.data.Subset(unlabelled, list(range(starts[i], starts[i + 1]))),
        }
        for i in range(len(CLIENTS))
    ]

    saved = {
        "inputs": inputs,
        "labels": labels,
        "sizes": np.array(CLIENTS),
        "server": np.array(SERVER),
    }
    saved |= {f"first/{name}": value for name, value in first.items()}
    model = tiny(track=True)
    model.load_state_dict(to_torch(first), strict=False)
    server = Server(model)
    clients = [Client(i, model) for i in range(len(CLIENTS))]

    def refresh(name: str) -> None:
        model.load_state_dict(server.model_state_dict, strict=False)
        their_data.make_sbn_stats(dataset, model)
        server.model_state_dict = {k: v.clone() for k, v in model.state_dict().items()}
        saved.update(from_torch(server.model_state_dict, f"{name}/"))

    for _ in range(PRETRAINING):
        server.train({"train_lb": labelled, "train_ulb": []}, RATE, Silent(), None)
    refresh("pretrained")
    for number in range(ROUNDS):
        server.distribute(clients, list(range(len(CLIENTS))))
        for client, rows in zip(clients, own, strict=True):
            client.train(rows, RATE, Silent(), Silent(), number + 1)
        saved[f"confident{number}"] = np.array(
            [int((unlabelled.pseudo_targets[o["train_ulb"].indices] >= 0).sum()) for o in own]
        )
        saved[f"sure{number}"] = np.array(
            [int((unlabelled.fix_pseudo_targets[o["train_ulb"].indices] >= 0).sum()) for o in own]
        )
        saved[f"tau{number}"] = np.array([float(client.algorithm.global_t) for client in clients])
        server.update(dataset, clients)
        server.train({"train_lb": labelled, "train_ulb": []}, RATE, Silent(), None)
        refresh(f"round{number}")
        with torch.no_grad():
            logits = model.eval()(torch.tensor(inputs)[:, :, None, None])["logits"]
        saved[f"log_probs{number}"] = torch.log_softmax(logits, 1).numpy()
    np.savez_compressed(out, **saved)
    print(
        {name: value.tolist() for name, value in saved.items() if name[:3] in ("con", "sur", "tau")}
    )


PARTS = ((slice(0, SERVER), False), (slice(SERVER, None), True))
SEED = 21

if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
