"""`mini_imagenet`: 600 small photographs of each of 100 classes of ImageNet.

Source: Vinyals et al., Matching Networks for One Shot Learning, NeurIPS 2016; Ravi and Larochelle,
ICLR 2017.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.archives import Files, RemoteFile
from fedjax_ssl.data.reading.cache import ROOT_VARIABLE, raw_folder
from fedjax_ssl.data.reading.columns import TableOptions
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.pickles import read_pickle
from fedjax_ssl.data.reading.problems import Place, not_here
from fedjax_ssl.data.reading.register import published
from fedjax_ssl.data.sources.folder import load_folder

NAME = "mini_imagenet"
SIDE = 84
SPLITS = ("train", "test")
TEST_SHARE = 6  # one image in six of a class is a test image: 100 of 600
EXAMPLES = (50_000, 10_000)
HOST = "https://zenodo.org/record/7978538/files"
PICKLES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "validation", "test"))
TERMS = (
    "images from ImageNet, for non-commercial research; cite Vinyals et al. (2016) and Ravi and "
    "Larochelle (2017)"
)

Form = Literal["pickles", "folders"]


def _files(form: str, size: int) -> tuple[RemoteFile, ...]:
    if size != SIDE:
        raise ValueError(
            f"size is {size}; the images of the pickles have {SIDE}; other sizes with "
            "form='folders'"
        )
    return tuple(RemoteFile(f"{HOST}/{name}") for name in PICKLES)


def load_folders(
    *,
    root: Place = None,
    path: Place = None,
    form: str = "folders",
    size: int = SIDE,
) -> Dataset:
    """Read the folders `train/CLASS/` and `test/CLASS/`, whose division is kept."""
    folder = raw_folder(NAME, root, path)
    if not all((folder / split).is_dir() for split in SPLITS):
        remedies = [
            "unpack train.tar.gz and test.tar.gz there, so that images are train/CLASS/NAME.jpg "
            "(https://ptak.felk.cvut.cz/personal/toliageo/share/lpdeep/)",
            f"give path= the folder that has train/ and test/, or point {ROOT_VARIABLE} or root= "
            f"at a folder that has {NAME}/raw/ with them",
            "leave form='folders' out: the pickles are downloaded",
        ]
        raise not_here(
            NAME,
            [f"{folder / split}/" for split in SPLITS],
            remedies,
            state="here as folders of images",
        )
    found = load_folder(
        root=root, path=folder, layout="class", size=size, channels=3, options=TableOptions()
    )
    notes = list(found.extra["notes"])
    count = (len(found.train), len(found.test or ()))
    if count != EXAMPLES:
        said = "{:,} + {:,} images; the published set has {:,} + {:,}"
        notes.append(said.format(*count, *EXAMPLES))
    return dataclasses.replace(found, name=NAME, extra={"terms": TERMS, "notes": notes})


@published(
    NAME,
    "60,000 photographs, 84x84x3, 100 classes; downloaded, 1.3 GB, or form=folders",
    terms=TERMS,
    files=_files,
    alternatives=(tuple(name.replace("validation", "val") for name in PICKLES),),
    examples=EXAMPLES,
    folders={"folders": load_folders},
)
def read_pickles(
    files: Files, form: Form = "pickles", size: Annotated[int, Whole(1)] = SIDE
) -> Dataset:
    """Read Mini-ImageNet with all 100 classes in training and test examples.

    The pickles are cut by class, for learning from few examples. Here the 600 images of every class
    are put together and a sixth of them, always the same ones, are test images. Folders
    `train/CLASS/` and `test/CLASS/` keep their own division.

    Args:
        files: pickles of `image_data` uint8 [n, 84, 84, 3] and `class_dict`, rows by name of the
            class.
        form: three pickles as learn2learn publishes them, or folders of images.
        size: side of the images; of folders whatever the images have, of pickles 84 alone.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3]; there are no natural clients.

    Raises:
        FormatError: a file is not in this form, damaged, or would run code.
    """
    images: dict[str, np.ndarray] = {}
    for path in files.values():
        for name, rows in _classes(path).items():
            if name in images:
                raise FormatError(f"{path} has the class {name}, which another file has too.")
            images[name] = rows
    generator = np.random.default_rng(0)
    parts: dict[str, tuple[list, list]] = {split: ([], []) for split in SPLITS}  # images and labels
    for label, name in enumerate(sorted(images)):
        rows = images[name]
        order = generator.permutation(len(images[name]))
        few = len(rows) // TEST_SHARE
        for split, part in (("test", order[:few]), ("train", order[few:])):
            parts[split][0].append(rows[np.sort(part)])
            parts[split][1].append(np.full(len(part), label, np.int32))
    train, test = (Split(*map(np.concatenate, parts[split])) for split in SPLITS)
    return Dataset(
        name=NAME, train=train, test=test if len(test) else None, class_names=tuple(sorted(images))
    )


def _classes(path: Path) -> dict[str, np.ndarray]:
    """Images [n, 84, 84, 3] of each class in a file."""
    content = read_pickle(path)
    if not isinstance(content, dict) or not {"image_data", "class_dict"} <= content.keys():
        raise FormatError(f"{path} has no image_data and class_dict.")
    images = content["image_data"]
    classes = content["class_dict"]
    found = type(images).__name__
    if isinstance(images, np.ndarray):
        found = f"{images.dtype} {images.shape}"
    if not found.startswith("uint8") or images.shape[1:] != (SIDE, SIDE, 3):
        raise FormatError(
            f"{path}: image_data is {found}; expected is uint8 (n, {SIDE}, {SIDE}, 3)."
        )
    found_rows = {}
    for name, rows in classes.items() if isinstance(classes, dict) else [("class_dict", None)]:
        whole = np.asarray(rows) if isinstance(rows, list | np.ndarray) else np.empty(0)
        fits = whole.ndim == 1 and whole.dtype.kind in "iu" and len(whole)
        if not fits or whole.min() < 0 or whole.max() >= len(images):
            raise FormatError(
                f"{path}: the rows of class {name!r} are no list of numbers below {len(images):,}."
            )
        found_rows[str(name)] = images[whole]
    return found_rows
