"""`cinic10`: CIFAR-10's classes in CIFAR-10's images and in photographs of ImageNet.

Source: Darlow, Crowley, Antoniou and Storkey, CINIC-10 Is Not ImageNet or CIFAR-10, 2018.
"""

import io
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.register import published
from fedjax_ssl.data.sources.cifar import CIFAR10_CLASSES

TAR = "CINIC-10.tar.gz"
SIDE = 32
# Mean and deviation of the channels, from the authors' repository (BayesWatch/cinic-10).
MEAN = (0.47889522, 0.47227842, 0.43047404)
STD = (0.24205776, 0.23828046, 0.25874835)


@published(
    "cinic10",
    "180,000 photographs, 32x32x3, 10 classes; downloaded, 688 MB",
    terms="CC BY 4.0 as its page says, with images from CIFAR-10 and ImageNet; cite Darlow et al. "
    "(2018)",
    files=(
        RemoteFile(
            f"https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/{TAR}",
            687_544_992,
            mirrors=(f"https://datashare.ed.ac.uk/bitstream/handle/10283/3192/{TAR}",),
        ),
    ),
    facts=Facts(90_000, 90_000, (32, 32, 3), 10),
)
def read_cinic10(files: Files) -> Dataset:
    """Read CINIC-10 from its archive of `train/CLASS/*.png` and `test/CLASS/*.png`.

    Examples are in the order of class and file name, whatever the archive's; those of `valid` are
    not used.

    Args:
        files: the archive.

    Returns:
        Dataset with inputs uint8 [n, 32, 32, 3].

    Raises:
        FormatError: the file is no such archive, or an image in it is damaged or of another size.
    """
    path = files[TAR]
    found: dict[str, dict[tuple[str, str], np.ndarray]] = {"train": {}, "test": {}}
    with damage(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            part, label, name = ("", "", "", *PurePosixPath(member.name).parts)[-3:]
            wanted = part in found and label in CIFAR10_CLASSES and name.endswith(".png")
            file = archive.extractfile(member) if wanted and member.isfile() else None
            if file is None or name.startswith("."):
                continue
            found[part][label, name] = _image(file.read(), f"{path}: {member.name}")
    train, test = (_split(part, images, path) for part, images in found.items())
    return Dataset("cinic10", train, test, class_names=CIFAR10_CLASSES, mean=MEAN, std=STD)


def _split(part: str, images: dict[tuple[str, str], np.ndarray], path: Path) -> Split:
    """Stack the images of one part, by class and file name."""
    if not images:
        raise FormatError(f"{path} has no {part}/CLASS/NAME.png of CIFAR-10's classes inside.")
    order = sorted(images)
    labels = [CIFAR10_CLASSES.index(label) for label, _ in order]
    return Split(np.stack([images[key] for key in order]), np.array(labels, np.int32))


def _image(content: bytes, where: str) -> np.ndarray:
    """Decode uint8 [32, 32, 3]; a few of the images are stored in grey."""
    with damage(where), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if image.size != (SIDE, SIDE):
            width, height = image.size
            raise FormatError(f"{where} has {width}x{height} pixels; expected are {SIDE}x{SIDE}.")
        return np.asarray(image.convert("RGB"))
