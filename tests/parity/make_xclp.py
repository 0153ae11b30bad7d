"""Makes fixtures/xclp.npz from the authors' code: python make_xclp.py CHECKOUT OUT.npz"""

import os
import sys
from types import SimpleNamespace

import faiss
import numpy as np
import torch
from reference_torch import CLASSES, HIDDEN, examples, from_torch, tiny_body, to_torch, weights

BITS = 4128
NEIGHBOURS = 4
BATCH = 3
EPOCHS = 2
ROUNDS = 2
RATE = 0.3
RAMPDOWN = 4
DECAY = 2e-4
POINTS = 40  # of a graph alone
SEED = 6
CLIENTS = ((13, 6), (12, 6), (9, 0))  # examples, and how many have a label


def signs(index, x):
    """The bits of an IndexLSH."""
    projections = faiss.vector_to_array(index.rrot.A).reshape(index.nbits, index.d)
    return x.astype(np.float32) @ projections.T >= 0


class Index:
    """An index of faiss with its own projections. NumPy projects and searches: on some machines
    faiss waits for ever beside PyTorch's threads. Distances are float64, so that what differs is no
    rounding.
    """

    def __init__(self, index):
        self.index = index

    def add(self, x):
        pass

    def search(self, x, k):
        if type(self.index).__name__ == "IndexFlatIP":
            near = -x @ x.T
        else:
            bits = signs(self.index, x)
            near = (bits[:, None] != bits[None]).sum(2).astype(np.float64)
        found = np.argsort(near, axis=1, kind="stable")[:, : k + 1]
        distances = np.take_along_axis(near, found, 1)
        assert (found[:, 0] == np.arange(len(x))).all(), "a point's first hit is itself"
        assert len(x) == k or (distances[:, k - 1] != distances[:, k]).all(), "no ties"
        return np.abs(distances[:, :k]), found[:, :k]


def main(checkout: str, out: str) -> None:
    sys.path.insert(0, checkout)
    made = []
    faiss.omp_set_num_threads(1)  # with several it may wait for ever beside PyTorch

    def in_place(x):
        x /= np.linalg.norm(x, axis=1, keepdims=True)

    def on_cpu(resources, device, index):
        made.append(index)
        return Index(index)

    faiss.normalize_L2 = in_place
    faiss.index_cpu_to_gpu = on_cpu
    faiss.StandardGpuResources = lambda: None
    faiss.GpuIndexFlatConfig = SimpleNamespace
    faiss.GpuIndexFlatIP = lambda resources, d, config: Index(faiss.IndexFlatIP(d))
    import helpers
    import pseudo_labelling

    rng = np.random.default_rng(SEED)
    saved = {}
    args = SimpleNamespace(
        **{
            "index_type": "LSH",
            "n_bits": BITS,
            "dfs_k": NEIGHBOURS,
            "isMT": 0,
            "lp_computation": "global",
        },
        **{"dataset": "cifar10", "consistency_type": "mse"},
    )
    label = pseudo_labelling.compute_plabels
    pseudo_labelling.compute_plabels = lambda *a, num_classes: label(*a, num_classes=CLASSES)

    # One graph: from codes to labels, their weights and those of the classes.
    inputs, labels = examples(rng, POINTS, 0.8)
    known = np.sort(rng.choice(POINTS, 9, replace=False))
    for kind in ("LSH", "FlatIP"):
        args.index_type = kind
        (found, confidence, balance), _ = label(inputs.copy(), labels.copy(), known, args, CLASSES)
        saved |= {
            f"{kind}_labels": found,
            f"{kind}_confidence": np.array(confidence),
            f"{kind}_balance": balance,
        }
    bits = np.packbits(signs(made[-1], inputs), axis=1, bitorder="little")
    saved |= {"points": inputs, "truth": labels, "known": known, "codes": bits}

    # Rounds of stage 2.
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            tiny_body(self)

        def forward(self, x):
            features = torch.relu(self.norm(self.dense(x))).flatten(1)
            return self.linear(features), features

    class Examples(torch.utils.data.Dataset):
        def __init__(self, x, y, targets):
            self.x = x
            self.y = y
            self.p_labels = targets
            self.p_weights = np.ones(len(y))
            self.class_weights = np.ones(CLASSES)

        def __len__(self):
            return len(self.y)

        def __getitem__(self, i):
            target = int(self.p_labels[i])
            x = torch.tensor(self.x[i])[:, None, None]
            return x, self.y[i], target, float(self.p_weights[i]), float(self.class_weights[target])

        def update_plabels(self, p_labels, p_weights, class_weights):
            self.p_labels = p_labels
            self.p_weights = p_weights
            self.class_weights = class_weights

    import datasets as their_datasets

    np.random.permutation = np.asarray  # stored order
    inputs, labels = examples(rng, sum(size for size, _ in CLIENTS), 0.6)
    first = weights(rng)
    first["norm1/bias"] += 2  # few features are 0, so that no two points have the same direction
    saved |= {"inputs": inputs, "labels": labels, "sizes": np.array(CLIENTS)}
    saved |= {f"first/{name}": value for name, value in first.items()}

    def loaders():
        start = 0
        found = []
        for size, seen in CLIENTS:
            rows = slice(start, start + size)
            x = inputs[rows]
            y = labels[rows]
            start += size
            unlabelled = Examples(x[seen:], y[seen:], np.full(size - seen, -1))
            if not seen:
                one = torch.utils.data.DataLoader(unlabelled, batch_size=2 * BATCH)
                found.append((one, one, np.array([], int)))
                continue
            joint = their_datasets.DoubleDataset(unlabelled, Examples(x[:seen], y[:seen], y[:seen]))
            parts = np.arange(joint.n1), np.arange(joint.n1, size)
            batches = their_datasets.TwoStreamBatchSampler(*parts, 2 * BATCH, BATCH)
            in_order = torch.utils.data.DataLoader(joint, batch_size=2 * BATCH)
            found.append(
                (torch.utils.data.DataLoader(joint, batch_sampler=batches), in_order, parts[1])
            )
        return found

    for name, local, kind in (("xclp", "global", "LSH"), ("per_client", "local", "FlatIP")):
        args.lp_computation = local
        args.index_type = kind
        clients = loaders()[: 3 if local == "global" else 2]
        network = Tiny()
        network.load_state_dict(to_torch(first), strict=False)
        models = [Tiny() for _ in clients]
        optimizers = [torch.optim.SGD(m.parameters(), lr=RATE, weight_decay=DECAY) for m in models]
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, RAMPDOWN) for o in optimizers]
        for number in range(ROUNDS):
            for model in models:
                model.load_state_dict(network.state_dict())
            saved[f"{name}{number}_log"] = np.array(
                list(pseudo_labelling.run_psuedo_labelling(clients, network, "cpu", args).values())
            )
            if local == "global":
                assert made[-1].d == HIDDEN
                saved["projections"] = (
                    faiss.vector_to_array(made[-1].rrot.A).reshape(BITS, HIDDEN).astype(np.float32)
                )
            losses = []
            for (loader, _, _), model, optimizer, schedule in zip(
                clients, models, optimizers, schedules, strict=True
            ):
                for epoch in range(EPOCHS):
                    losses.append(helpers.train(loader, model, optimizer, "cpu", args, epoch, 0)[0])
                schedule.step()
            helpers.average_models(models, network)
            saved |= from_torch(network.state_dict(), f"{name}{number}/")
            saved[f"{name}{number}_loss"] = np.array(losses)
    np.savez_compressed(out, **saved)
    print(
        {name: value.tolist() for name, value in saved.items() if "log" in name or "loss" in name}
    )


if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
