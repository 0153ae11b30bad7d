"""Makes fixtures/fedul.npz from the authors' code: python make_fedul.py CHECKOUT OUT.npz"""

import os
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import torch
from reference_torch import (
    CLASSES,
    examples,
    from_torch,
    tiny_body,
    tiny_forward,
    to_torch,
    weights,
)

BATCH = 7
EPOCHS = 2
ROUNDS = 3
RATE = 0.01
L1 = 1e-2
DECAY = 1e-2
SHARE = 0.3
SETS = ((5, 4, 6, 5), (7, 6, 5))  # sizes, by client


def main(checkout: str, out: str) -> None:
    os.chdir(checkout)
    sys.path[:0] = [checkout, f"{checkout}/federated"]
    torch.Tensor.float = torch.Tensor.double  # their code casts every batch
    np.random.beta = lambda a, b: SHARE
    fedul, fedpl, fedllp, vat = (
        import_module(f"federated.{m}_mnist") for m in ("fedul", "fedpl", "fedllp", "fedllpvat")
    )
    from nets.models import DigitModel

    class Tiny(DigitModel):  # their transition, another network
        def __init__(self, channel):
            torch.nn.Module.__init__(self)
            tiny_body(self)
            self.channel = channel
            self.quiet = False

        def forward(self, x, Pi=None, priors_corr=None, prior_test=None):
            tracking = self.norm.track_running_stats
            if self.quiet and not torch.is_grad_enabled():
                self.norm.track_running_stats = False
            logits = tiny_forward(self, x)
            self.norm.track_running_stats = tracking
            if not self.channel:
                passes.append(torch.softmax(logits.detach(), 1).max(1).values.numpy())
            return (
                self.QfunctionMulticlass(torch.softmax(logits, 1), Pi, priors_corr)
                if self.channel
                else logits
            )

    rng = np.random.default_rng(5)
    size = sum(map(sum, SETS))
    inputs, labels = examples(rng, size)
    order = rng.permutation(size)
    inputs = inputs[order]
    labels = labels[order]
    first = weights(rng)
    saved = {"inputs": inputs, "labels": labels} | {
        f"first/{name}": value for name, value in first.items()
    }

    x = torch.tensor(inputs)[:, :, None, None]
    start = 0
    clients = []
    for number, sizes in enumerate(SETS):
        rows = np.arange(start, start + sum(sizes))
        start += sum(sizes)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        owner = owner[rng.permutation(len(owner))]
        shares = np.array(
            [np.bincount(labels[rows[owner == m]], minlength=CLASSES) for m in range(len(sizes))]
        )
        shares = shares / shares.sum(1, keepdims=True)
        clients.append(
            (rows, owner, torch.tensor(shares), torch.tensor(np.array(sizes) / sum(sizes)))
        )
        saved |= {f"set{number}": owner, f"shares{number}": shares}

    def examples_of(rows, targets, **how):
        pairs = [(x[row], target) for row, target in zip(rows, targets, strict=True)]
        return torch.utils.data.DataLoader(pairs, **how)

    passes = []

    def run(name, channel, loader, train, decay=0.0, rounds=ROUNDS, quiet=False, first=first):
        passes.clear()
        server = Tiny(channel)
        server.load_state_dict(to_torch(first), strict=False)
        models = [Tiny(channel) for _ in clients]
        for model in models:
            model.load_state_dict(server.state_dict())
            model.quiet = quiet
        for number in range(rounds):
            optimizers = [
                torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=decay)
                for model in models
            ]
            losses = []
            for _ in range(EPOCHS):
                for model, optimizer, client in zip(models, optimizers, clients, strict=True):
                    losses.append(train(model, loader(client), optimizer, client, number))
            server, models = fedul.communication(
                None, server, models, [1 / len(clients)] * len(clients)
            )
            saved.update(from_torch(server.state_dict(), f"{name}{number}/"))
            saved[f"{name}{number}_loss"] = np.array(losses)

    args = SimpleNamespace(wdecay=L1)
    nll = torch.nn.CrossEntropyLoss()

    def by_example(client):
        return examples_of(client[0], torch.tensor(client[1]), batch_size=BATCH, drop_last=True)

    def by_set(client):
        rows, owner, shares, _ = client
        sets = [np.flatnonzero(owner == m).tolist() for m in range(len(shares))]
        return examples_of(rows, shares[owner], batch_sampler=sets)

    def one_epoch(module, *extra):
        return lambda model, loader, optimizer, client, number: module.train(
            args, model, loader, optimizer, nll, 2, "cpu", client[2], client[3], None, *extra
        )

    run("fedul", True, by_example, one_epoch(fedul))

    # FedPL's sets hand out their largest class, as its loader does; its own labels begin in round
    # 5.
    def by_class(client):
        return examples_of(
            client[0], client[2].argmax(1)[torch.tensor(client[1])], batch_size=BATCH
        )

    flat = {name: 0.3 * value if "kernel" in name else value for name, value in first.items()}
    saved |= {f"flat/{name}": value for name, value in flat.items()}
    for name, start_at in (("fedpl", first), ("fedpl_flat", flat)):
        run(
            name,
            False,
            by_class,
            lambda model, loader, optimizer, client, number: fedpl.train(
                model, loader, optimizer, nll, 2, "cpu", None, None, None, 5 * number
            ),
            decay=DECAY,
            rounds=2,
            first=start_at,
        )
        later = passes[len(passes) // 2 :]
        saved[f"{name}_skipped"] = np.array(
            sum(min((p >= 0.4).sum(), (p < 0.4).sum()) < 1 for p in later)
        )
        saved[f"{name}_steps"] = np.array(len(later))
    run("fedllp", False, by_set, one_epoch(fedllp, None))
    # Where the search for the adversarial direction starts, and the weight of its loss, which the
    # code lets vanish.
    torch.randn_like = lambda like: torch.arange(like.numel()).reshape(like.shape) % 7 - 2.5
    weigh = vat.get_rampup_weight
    vat.get_rampup_weight = lambda weight, step, ramp: 1000 * weigh(weight, step, ramp)
    lengths = []
    unit = vat._l2_normalize

    def measured(d):
        found = unit(d)
        lengths.append(torch.linalg.norm(found.flatten(1), dim=1).numpy())
        return found

    def whole(d):  # without the 1e-8 beside a gradient that is of that size
        return d / torch.linalg.norm(d.flatten(1), dim=1)[:, None, None, None]

    vat._l2_normalize = measured
    run("fedllp_vat", False, by_set, one_epoch(vat, None))
    # of the second of the two directions in a step
    saved["vat_lengths"] = np.concatenate(lengths[1::2])
    run("quiet_vat", False, by_set, one_epoch(vat, None), quiet=True)
    vat._l2_normalize = whole
    run("whole_vat", False, by_set, one_epoch(vat, None), quiet=True)
    np.savez_compressed(out, **saved)
    print("length of perturbations", np.percentile(saved["vat_lengths"], [0, 5, 50, 95, 100]))
    print(
        {
            name: value.tolist()
            for name, value in saved.items()
            if "loss" in name or "sk" in name or "steps" in name
        }
    )


if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
