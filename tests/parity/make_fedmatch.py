"""Makes fixtures/fedmatch_SCENARIO.npz from the authors' code: python make_fedmatch.py CHECKOUT
OUT_FOLDER SCENARIO

SCENARIO is lc (labels at clients) or ls (labels at the server).
"""

import contextlib
import os
import re
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

DIVISOR = 32
CLASSES = 3
CLIENTS = 4
LABELLED = 6
UNLABELLED = 12
SERVER = 6
VALID = 9
ROUNDS = 3
BATCH_LABELLED = 3
BATCH_SERVER = 4
RATE = 1e-2
SEED = 4


def main(checkout: str, out: str, scenario: str) -> None:
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    sys.modules.update(
        {name: MagicMock() for name in ("cv2", "torch", "matplotlib", "matplotlib.pyplot")}
    )
    import tensorflow as tf

    # Their network with a 32nd of the channels: the numbers of channels are written out in it.
    source = (Path(checkout) / "modules" / "nets.py").read_text()
    source = re.sub(r"\b(64|128|256|512)\b", lambda found: str(int(found[0]) // DIVISOR), source)
    sys.modules["modules.nets"] = nets = types.ModuleType("modules.nets")
    nets.__file__ = str(Path(checkout) / "modules" / "nets.py")
    exec(compile(source, "modules/nets.py", "exec"), nets.__dict__)
    from data.loader import DataLoader
    from models.fedmatch.server import Server

    at_server = scenario == "ls"
    work = tempfile.mkdtemp()
    args = types.SimpleNamespace(
        **{
            "task": f"{scenario}-biid-c10",
            "model": "fedmatch",
            "fed_method": "fedavg",
            "gpu": "0",
            "seed": 0,
        },
        **{"archi": "resnet9", "frac_clients": 1.0, "work_type": "train"},
    )
    from config import set_config

    args = set_config(args)
    args.output_path = args.check_pts = args.log_dir = args.dataset_path = work
    args.num_clients = CLIENTS
    args.num_rounds = ROUNDS
    args.num_classes = CLASSES
    args.lr = RATE
    args.batch_size_client = 100 if at_server else BATCH_LABELLED
    args.batch_size_server = BATCH_SERVER
    args.confidence = 0.5
    args.h_interval = 2
    args.lr_patience = 1
    args.delta_thres = 2e-3
    args.lambda_i = args.lambda_a = 0.3  # so that they show
    args.batch_size_test = VALID  # one batch: their mean is over batches of losses
    if at_server:
        args.batch_size_client = UNLABELLED // 2

    rng = np.random.default_rng(SEED)
    number = CLIENTS * (LABELLED + UNLABELLED) + SERVER + VALID
    labels = np.arange(number) % CLASSES
    looks = rng.integers(0, 256, (CLASSES, 4, 4, 3))
    small = np.clip(
        0.6 * looks[labels] + 0.4 * rng.integers(0, 256, (number, 4, 4, 3)), 0, 255
    ).astype(np.uint8)
    images = small.repeat(8, 1).repeat(8, 2)
    one_hot = np.eye(CLASSES, dtype=np.float32)[labels]
    cut = np.split(
        np.arange(number), np.cumsum([LABELLED] * CLIENTS + [UNLABELLED] * CLIENTS + [SERVER])
    )
    have = {
        "s": cut[:CLIENTS],
        "u": cut[CLIENTS : 2 * CLIENTS],
        "server": cut[-2],
        "valid": cut[-1],
    }

    def give(rows):
        return (images[rows].copy(), one_hot[rows])

    DataLoader.get_s_by_id = lambda self, client: (*give(have["s"][client]), "s")
    DataLoader.get_u_by_id = lambda self, client, task: (*give(have["u"][client]), "u")
    DataLoader.get_s_server = lambda self: (*give(have["server"]), "s")
    DataLoader.get_test = DataLoader.get_valid = lambda self: give(have["valid"])
    # a mirror in place of RandAugment
    DataLoader.augment = lambda self, x, soft=True: x[:, :, ::-1]

    import models.fedmatch.server as theirs
    from models.fedmatch.client import Client
    from modules.federated import ServerModule

    class OneWorker:  # a client after the other on one worker each, and no threads
        def __init__(self, target, args):
            self.call = lambda: target(*args)

        def start(self):
            self.call()

        def join(self):
            pass

    theirs.threading = types.SimpleNamespace(Thread=OneWorker)
    ServerModule.create_clients = lambda self: setattr(
        self, "clients", {i: Client(i, args) for i in range(CLIENTS)}
    )
    ServerModule.limit_gpu_memory = lambda self: None
    np.random.choice = lambda ids, size, replace: np.asarray(ids)[:size]  # everybody, in order
    saved = {"images": small, "labels": labels, "images_each": np.array(8)}
    tf.device = lambda name: tf.name_scope("cpu")

    aggregate = Server.client_similarity

    def remember(self, updates):
        aggregate(self, updates)
        number = self.curr_round
        saved[f"embeddings{number}"] = np.array([self.cid_to_vectors[c] for c in range(CLIENTS)])
        for way, place in (("c2s", 3), ("s2c", 4)):
            for part in ("ratio", "sig_ratio", "psi_ratio", "hlp_ratio"):
                if part in updates[0][place]:
                    saved[f"{way}_{part}{number}"] = np.array([u[place][part][-1] for u in updates])
        saved[f"rates{number}"] = np.array(
            [c.train.state["curr_lr"] for c in self.clients.values()]
        )

    Server.client_similarity = remember
    average = Server.set_weights

    def remember_model(self, new):
        average(self, new)
        for part, tree in (
            (("sigma", self.sig), ("psi", self.psi)) if self.curr_round in (0, ROUNDS - 1) else ()
        ):
            for layer, value in enumerate(tree):
                saved[f"round{self.curr_round}/{part}/{layer}"] = value.numpy()

    Server.set_weights = remember_model
    build = Server.build_network

    def remember_first(self):
        build(self)
        for layer, value in enumerate(self.sig):
            saved[f"first/{layer}"] = value.numpy()
        saved["noise"] = np.asarray(self.rgauss)[0]

    Server.build_network = remember_first
    np.random.seed(0)
    from modules.nets import NetModule

    # the server's first sigma, with psi by its factor; nothing is read from disk
    def same_start(self):
        for layer, sigma in enumerate(self.sigma):
            self.psi[layer].assign(sigma.numpy() * args.psi_factor)

    NetModule.set_init_params = same_start
    server = Server(args)
    with contextlib.suppress(SystemExit):
        server.run()
    saved["scores"] = np.array(server.train.state["scores"]["aggr_lss"])
    np.savez_compressed(Path(out) / f"fedmatch_{scenario}.npz", **saved)
    print(
        {
            name: value.tolist()
            for name, value in saved.items()
            if re.match("c2s|s2c|rates|scores", name)
        }
    )


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3])
