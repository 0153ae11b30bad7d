"""Makes fixtures/sage.npz or fixtures/proxyfl.npz from the authors' code:
python make_sage.py CHECKOUT OUT.npz
"""

import argparse
import importlib
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

from reference_torch import CLASSES, FEATURES, HIDDEN, examples, weights  # isort: skip

BATCH = 4
EPOCHS = 2
ROUNDS = 3
RATE = 0.1
THRESHOLD = 0.6
CLIENTS = ((4, 16), (4, 8), (8, 24))  # labelled and all examples: whole batches of both streams
COPIES = 2000  # of labelled examples, which the code's data set counts
NAMES = {
    **{"dense.weight": "dense1/kernel", "dense.bias": "dense1/bias"},
    **{"norm.weight": "norm1/scale", "norm.bias": "norm1/bias"},
    **{"norm.running_mean": "norm1/mean", "norm.running_var": "norm1/var"},
    **{"classifier.weight": "head/kernel", "classifier.bias": "head/bias"},
    **{"feat_proj.weight": "projections/features/kernel"},
    **{"feat_proj.bias": "projections/features/bias"},
    **{"proxy_proj.weight": "projections/rows/kernel"},
}


class Tiny(torch.nn.Module):
    """Affine, batch norm, rectified, affine; and the maps of ProxyFL's network."""

    scaling = HIDDEN / 64  # the code's width of a feature is 64 times this
    block_fn = argparse.Namespace(expansion=1)
    maps = True

    def __init__(self, **_):
        super().__init__()
        self.dense = torch.nn.Linear(FEATURES, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.classifier = torch.nn.Linear(HIDDEN, CLASSES)
        if self.maps:
            self.feat_proj = torch.nn.Linear(HIDDEN, HIDDEN)
            self.proxy_proj = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        feature = torch.relu(self.norm(self.dense(x)))
        return feature, self.classifier(feature)


def in_order(dataset, batch_size, *, shuffle=False, drop_last=False, **_):
    """Batches in stored order; of proxies, class after class."""
    rows = sorted(dataset, key=lambda pair: int(pair[1])) if shuffle else dataset
    return torch.utils.data.DataLoader(rows, batch_size, drop_last=drop_last)


def main(checkout: str, out: str) -> None:
    proxies = (Path(checkout) / "ProxyFL").is_dir()
    sys.path.insert(0, str(Path(checkout) / "ProxyFL" if proxies else checkout))
    importlib.import_module("torch._dynamo")  # before modules are missing
    for absent in (
        *("torchvision", "torchvision.transforms", "options", "pandas", "tqdm"),
        *("Dataset", "Dataset.dataset", "Dataset.sample_dirichlet", "Dataset.CINIC10"),
        *("Model", "Model.resnet"),
    ):
        sys.modules[absent] = MagicMock()
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_: self
    torch.Tensor.float = torch.Tensor.double
    code = importlib.import_module("proxyfl" if proxies else "SAGE")
    Tiny.maps = proxies
    code.ResNet = code.ResNet_PC = Tiny
    code.DataLoader = in_order
    code.args = argparse.Namespace(
        **{"gpu_id": 0, "num_classes": CLASSES, "lr_local_training": RATE, "T": 1.0, "mu": 2},
        **{"batch_size_local_labeled_fixmatch": BATCH, "local_epochs": EPOCHS, "lambda_u": 1.0},
        **{"threshold": THRESHOLD, "lr_server": 0.05, "bs_server": 4, "gpt_threshold": 100.0},
        **{"total_server_epochs": 3 * ROUNDS, "num_rounds": ROUNDS},
    )

    rng = np.random.default_rng(SEED)
    inputs, labels = examples(rng, sum(size for _, size in CLIENTS), 0.6)
    first = weights(rng, 1.5)
    for name, shape in {
        "projections/features/kernel": (HIDDEN, HIDDEN),
        "projections/features/bias": (HIDDEN,),
        "projections/rows/kernel": (HIDDEN, HIDDEN),
    }.items():
        first[name] = 0.4 * rng.normal(size=shape)
    if not proxies:
        first = {name: one for name, one in first.items() if "projections" not in name}
    saved = {"inputs": inputs, "labels": labels, "clients": np.array(CLIENTS)}
    saved |= {f"first/{name}": one for name, one in first.items()}
    starts = np.cumsum([0, *(size for _, size in CLIENTS)])
    data = []
    for start, (labelled, size) in zip(starts, CLIENTS, strict=False):
        x = torch.tensor(inputs[start : start + size])
        y = torch.tensor(labels[start : start + size])
        known = [(x[i], y[i]) for i in range(labelled)]
        data.append((known, [(x[i], x[i].flip(0), y[i]) for i in range(size)]))

    for kind in ("reset", "kept"):
        server = code.Global(code.args)
        local = code.Local(code.args)
        state = server.model.state_dict()
        state |= {n: torch.tensor(first[o]) for n, o in NAMES.items() if o in first}
        server.model.load_state_dict(state)
        prior = server.update_global_distribution() if proxies else None
        for number in range(ROUNDS):
            sent = {name: one.clone() for name, one in server.model.state_dict().items()}
            uploads, shares, counts = [], [], []
            for client, (known, everything) in enumerate(data):
                if kind == "reset":
                    local.optimizer.state.clear()
                given = (code.args, known, everything, sent, number + 1)
                if proxies:
                    model, _, seen = local.fixmatch_train(*given, client, prior)
                    counts.append(seen)
                else:
                    model = local.fixmatch_train(*given)
                uploads.append(model)
                shares.append(COPIES * len(known) + len(everything))
            if proxies:
                prior = server.update_global_distribution(prior, counts)
                saved[f"{kind}/prior{number}"] = prior
                averaged, _ = server.initialize_for_model_fusion(uploads, shares)
            else:
                averaged = server.initialize_for_model_fusion(uploads, shares)
            server.model.load_state_dict(averaged)
            for name, ours in NAMES.items():
                if name in averaged:
                    saved[f"{kind}/round{number}/{ours}"] = averaged[name].numpy().copy()
            with torch.no_grad():
                logits = server.model.eval()(torch.tensor(inputs))[1]
            saved[f"{kind}/log_probs{number}"] = torch.log_softmax(logits, 1).numpy()
    np.savez_compressed(out, **saved)
    print({name: one for name, one in saved.items() if "prior" in name})


SEED = 5

if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
