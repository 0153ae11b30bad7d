"""`omniglot`: characters of 50 alphabets, each drawn by 20 people.

Source: Lake, Salakhutdinov and Tenenbaum, Human-level concept learning through probabilistic
program induction, Science 350 (2015).
"""

import io
import re
import zipfile
from typing import Annotated, Literal

import numpy as np
from PIL import Image

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.archives import Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.register import published

Subset = Literal["all", "background", "evaluation", "small1", "small2"]
HOST = "https://github.com/brendenlake/omniglot/raw/master/python"
SIDE = 105
LARGEST_IMAGE = 1 << 16  # bytes; the originals have some 300
FILES = {
    part: RemoteFile(f"{HOST}/images_{'background_' * part.startswith('small')}{part}.zip", *facts)
    for part, facts in {
        "background": (
            9_464_212,
            "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        ),
        "evaluation": (
            6_462_886,
            "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
        ),
        "small1": (1_319_022, "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4"),
        "small2": (1_580_917, "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f"),
    }.items()
}
EXAMPLES = {
    "all": 32_460,
    "background": 19_280,
    "evaluation": 13_180,
    "small1": 2_720,
    "small2": 3_120,
}


@published(
    "omniglot",
    "32,460 characters of 50 alphabets by 20 drawers each, 28x28x1 or size=, 1,623 classes; "
    "downloaded",
    terms="MIT; cite Lake, Salakhutdinov and Tenenbaum (2015)",
    files=lambda subset, size: tuple(
        FILES[part] for part in (("background", "evaluation") if subset == "all" else (subset,))
    ),
    examples=lambda subset, size: (EXAMPLES[subset], 0),
)
def read_omniglot(
    files: Files, subset: Subset = "all", size: Annotated[int, Whole(1, SIDE)] = 28
) -> Dataset:
    """Read Omniglot; a client is a drawer of one alphabet, whose number means somebody else in
    another alphabet.

    Args:
        files: zip files of `.../ALPHABET/characterNN/NNNN_DD.png`, in which DD is the drawer and
            ink is 0.
        subset: all 50 alphabets, the 30 or the 20 of the published division, or one of the two
            small sets of 5.
        size: side of the images, area-averaged from 105.

    Returns:
        Dataset with inputs uint8 [n, size, size, 1], ink high; a class is a character of one
        alphabet. There is no test split: hold out clients.

    Raises:
        FormatError: a file is no such archive, or an image in it is damaged.
    """
    found: dict[tuple[str, str, int], np.ndarray] = {}
    for path in files.values():
        with damage(path), zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                match = re.fullmatch(r".*?([^/]+)/(character\d+)/\d+_(\d+)\.png", member.filename)
                if match and not member.filename.startswith("__MACOSX"):
                    if member.file_size > LARGEST_IMAGE:
                        raise FormatError(
                            f"{path}: {member.filename} has {member.file_size:,} bytes, which is "
                            "no drawing."
                        )
                    image = _image(archive.read(member), size, f"{path}, {member.filename}")
                    found[match[1], match[2], int(match[3])] = image
    if not found:
        raise FormatError(
            f"{', '.join(str(path) for path in files.values())}: no "
            "ALPHABET/characterNN/NNNN_DD.png inside."
        )
    order = sorted(found)
    classes = sorted({key[:2] for key in order})
    drawers = sorted({(alphabet, drawer) for alphabet, _, drawer in order})
    class_of = {key: place for place, key in enumerate(classes)}
    client_of = {key: place for place, key in enumerate(drawers)}
    y = np.array([class_of[key[:2]] for key in order], np.int32)
    client = np.array([client_of[key[0], key[2]] for key in order], np.int32)
    return Dataset(
        "omniglot",
        Split(np.stack([found[key] for key in order])[..., None], y, client),
        test=None,
        class_names=tuple(
            f"{alphabet} {character.removeprefix('character')}" for alphabet, character in classes
        ),
        client_names=tuple(f"{alphabet} {drawer:02}" for alphabet, drawer in drawers),
    )


def _image(content: bytes, size: int, name: str) -> np.ndarray:
    with damage(name), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if image.size != (SIDE, SIDE):
            raise FormatError(
                f"{name} has {image.size[0]}x{image.size[1]} pixels; expected are {SIDE}x{SIDE}."
            )
        grey = image.convert("L")
        if size != SIDE:
            grey = grey.resize((size, size), Image.Resampling.BOX)
        return 255 - np.asarray(grey)
