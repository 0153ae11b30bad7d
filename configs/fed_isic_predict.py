"""One-shot prediction on Fed-ISIC2019: dermoscopic images of six centres, 8 classes (XCLP, Tables 1
to 3).

    # your features
    python -m fedjax_ssl.main --config configs/fed_isic_predict.py --config.data.path=features.npz
    python -m fedjax_ssl.main --config configs/fed_isic_predict.py:pretrained --config.model.weights=efficientnet_b0.npz
    python -m fedjax_ssl.main --config configs/fed_isic_predict.py:finetuned --config.model.weights=efficientnet_b0.npz
    python -m fedjax_ssl.main --config configs/fed_isic_predict.py:left_out --config.data.left_out_client=3

`features.npz` holds 1280 features per image (or whatever your network has) as
configs/npz_predict.py describes. The others read FLamby's folder (docs/your_data.md) and embed the
images with EfficientNet-B0 from torchvision's weights, which are yours to bring:
np.savez("efficientnet_b0.npz", **{k: v.numpy() for k, v in model.state_dict().items()}).
`finetuned` and `left_out` train by FedAvg first. A tenth of the training images is labelled; the
paper's sizes are not known (--config.supervision.fraction). Table 1 is the rows "_labelled", Table
3 both kinds, Table 2 is `left_out`.

9 rounds of 100 local steps are by FLamby's rule; the paper has more rounds, and does not say how
many (--config.rounds). Not the paper's run: cross-entropy and whole images here, focal loss and
crops in `fedjax-ssl reproduce xclp-table1`; L, k, alpha are ours. The metric is balanced accuracy.
It needs the data and a GPU.
"""

from typing import Literal

from fedjax_ssl import presets

VARIANTS = {
    "features": "inputs",
    "pretrained": "network",
    "finetuned": "network",
    "left_out": "left_out",
}
# FLamby's rule: 20 epochs over the images of its code, dealt to 6 centres, in rounds of 100 updates
# of 64 images.
ROUNDS = 18_413 // 6 // 64 * 20 // 100  # 9


@presets.variants
def get_config(
    variant: Literal["features", "pretrained", "finetuned", "left_out"] = "features",
):
    config = presets.one_shot(VARIANTS[variant], rounds=0 if variant == "pretrained" else ROUNDS)
    config.data.client_test_fraction = 0.0  # FLamby's own test images are the new ones
    if variant == "features":
        config.data.name = "npz"
        config.data.path = "features.npz"
        return config
    if variant == "pretrained":
        config.prediction.predictors = "xclp,per_client_lp"
    config.data.name = "fed_isic2019"
    config.data.size = 224
    config.model.name = "efficientnet_b0"
    config.optimizer.learning_rate = 0.01
    config.optimizer.batch_size = 64
    config.optimizer.local_steps = 100
    config.eval_every = 3
    return config
