"""Datasets that nobody may pass on: the user fetches and places them."""

from pathlib import Path

from fedjax_ssl.data.sources.cache import ROOT_VARIABLE
from fedjax_ssl.data.sources.entries import EMBEDDED
from fedjax_ssl.data.sources.fetch import DatasetUnavailable


def require_placed(name: str, folder: Path, parts: tuple[str, str], steps: str, instead: str = EMBEDDED) -> None:
    """Checks that a dataset which the user has to fetch is there.

    Args:
        name: of the dataset.
        folder: where it should be.
        parts: the folder of images and the table within.
        steps: how to get both, numbered, with line breaks.
        instead: datasets that need no download.

    Raises:
        DatasetUnavailable: it is not; says what to do.
    """
    images, table = (folder / part for part in parts)
    if images.is_dir() and table.is_file():
        return
    raise DatasetUnavailable(
        f"{name} is not here.\n"
        f"  looked  {images}/, {table}\n"
        "To go on, do one of these:\n"
        f"  - put both there, or give path= (config.data.path) the folder that has them, or point {ROOT_VARIABLE} or "
        f"root= at a folder that has {name}/raw/ with them:\n"
        f"{steps}"
        f"  - run on data that needs no download: {instead}"
    )
