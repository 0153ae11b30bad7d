"""The configs inside the package. This file imports nothing, so that lists of names are fast."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def docs() -> Path:
    """Return the folder of the pages that texts call docs/NAME.md: inside an installed package, or
    in a checkout.
    """
    inside = _PACKAGE / "docs"
    return inside if inside.is_dir() else _PACKAGE.parent / "docs"


def shipped_configs() -> dict[str, Path]:
    """Return the names and files of the shipped configs: inside an installed package, or in
    `configs/` of a checkout.
    """
    inside = _PACKAGE / "configs"
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}
