"""FedUL's case study: intracranial haemorrhage in CT slices, 5 health systems of 12, 24 or 48
hospitals (sets) each.

Lu et al., ICLR 2022, Table 2: error 40 % with 12 hospitals per system, 31 % with 24, 31 % with 48.

    python -m fedjax_ssl.main --config configs/rsna_fedul.py:24 --config.data.path=rsna.npz

The data are those of the RSNA Intracranial Hemorrhage Detection challenge, which you download and
prepare: an .npz file with `inputs` [n, 224, 224, 3] uint8, `labels` (healthy, epidural,
intraparenchymal, intraventricular, subarachnoid, subdural: 0 to 5; slices with more than one are
left out) and `test_inputs`, `test_labels`. The paper has 66,000 slices in five equal parts.
Windowing, the choice of slices, the L1 weight, the range of the class shares (here U[0.1, 1), one
class ten times as likely) and the split are not given there, so this is no reproduction. ResNet-18
from random weights without the pooling of the stem; the released code starts from ImageNet weights.

A GPU with 80 GB; not run on the real data.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(hospitals: presets.Count = 24):
    config = configs.default("fedul")
    config.rounds = 100
    config.eval_every = 1
    config.data.name = "npz"
    config.data.num_classes = 6
    config.data.validation_fraction = 0.1
    config.partition.name = "iid"
    config.partition.num_clients = 5
    config.supervision.name = "sets"
    config.supervision.sets = hospitals
    config.supervision.protocol = "equal"
    config.augment.name = "crop_flip"
    config.augment.pixels = 0
    config.model.name = "resnet18"
    config.model.stem = "imagenet_unpooled"
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.batch_size = 128
    config.precision = "bf16"
    return config
