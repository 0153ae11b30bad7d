"""Makes fixtures/protofssl.npz from the authors' code: python make_protofssl.py CHECKOUT OUT.npz"""

import os
import sys

import numpy as np
import tensorflow as tf

FEATURES = 6
EMBEDDING = 5
CLASSES = 3
CLIENTS = 3
LABELS = 4
UNLABELLED = 8
STEPS = 3
ROUNDS = 4
RATE = 1e-2


def main(checkout: str, out: str) -> None:
    sys.path.insert(0, checkout)
    # so that what differs is no rounding: RMSprop makes it large
    tf.keras.backend.set_floatx("float64")
    tf.float32 = tf.float64  # which their code names
    from fed.client import Client
    from fed.server import Server
    from utils import calc_euclidian_dists

    np.random.choice = lambda number, size, replace: np.arange(number)[:size]  # the first ones
    rng = np.random.default_rng(1)
    size = CLASSES * LABELS + UNLABELLED
    labels = np.tile(np.arange(size) % CLASSES, CLIENTS)
    inputs = 1.5 * np.eye(CLASSES, FEATURES)[labels] + 0.8 * rng.normal(
        size=(len(labels), FEATURES)
    )
    first = {
        "kernel": rng.normal(size=(FEATURES, EMBEDDING)),
        "bias": (-0.3 + 0.2 * rng.normal(size=EMBEDDING)),
    }
    saved = {
        "inputs": inputs,
        "labels": labels,
        "first/kernel": first["kernel"],
        "first/bias": first["bias"],
    }
    data = []
    for client in range(CLIENTS):
        rows = np.arange(client * size, (client + 1) * size)
        labelled = rows[: CLASSES * LABELS]
        rest = rows[CLASSES * LABELS :]
        own = {str(label): inputs[labelled[labels[labelled] == label]] for label in range(CLASSES)}
        data.append(dict(own, unlabel=inputs[rest]))

    def network():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(EMBEDDING, "relu", input_shape=(FEATURES,))]
        )
        model.set_weights([first["kernel"], first["bias"]])
        return model

    for name in ("reset", "kept"):
        optimizer = tf.keras.optimizers.RMSprop(learning_rate=RATE)
        how = {
            "num_label": LABELS,
            "q_unlabel": UNLABELLED - 2,
            "num_class": CLASSES,
            "local_episode": STEPS,
        }
        clients = [Client(optimizer, input_shape=(FEATURES,), **how) for _ in range(CLIENTS)]
        model = network()
        server = Server(network(), None, None, CLASSES, (FEATURES,), CLIENTS)
        for number in range(ROUNDS):
            server.reset_weight()
            server.update_client_prototypes()
            helpers = list(server.get_client_prototype())
            losses = []
            for index, client in enumerate(clients):
                if name == "reset":  # one optimizer serves all clients; each starts it anew here
                    for slot in optimizer.weights:
                        slot.assign(tf.zeros_like(slot))
                weights = server.get_global_model_weights()
                new, prototypes, _, loss = client.training(
                    data, index, model, weights, helpers, number, False, 0.0
                )
                server.rec_client_model_weights(new)
                server.rec_cleint_prototype(prototypes)
                losses.append(float(loss))
            server.fed_avg()
            kernel, bias = server.get_global_model_weights()
            saved.update({f"{name}{number}/kernel": kernel, f"{name}{number}/bias": bias})
            saved[f"{name}{number}_prototypes"] = np.array(
                [p.numpy() for p in server.client_prototype_list[-CLIENTS:]]
            )
            saved[f"{name}{number}_loss"] = np.array(losses)
            # As in their evaluation, which averages over all prototypes that the server has.
            embedded = server.global_model(inputs, training=False)
            each = [
                tf.nn.softmax(-calc_euclidian_dists(embedded, p))
                for p in server.client_prototype_list
            ]
            saved[f"{name}{number}_probabilities"] = np.mean(each, axis=0)
    np.savez_compressed(out, **saved)
    print({name: value.tolist() for name, value in saved.items() if "loss" in name})


if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:3]))
