"""`fedjax-ssl run NAME --help`: what a config is for, and all of its fields."""

import ast
import shutil
import textwrap
from collections.abc import Iterable

from fedjax_ssl import config as configs

_COLUMN = 38  # where the text about a field begins


def describe_config(name: str, settings: Iterable[tuple[str, str]] = ()) -> str:
    """The docstring of a config's file, and a paragraph for each of its fields.

    Args:
        name: as of `fedjax_ssl.config.load`.
        settings: likewise; what another method or model brings is shown instead.

    Raises:
        ConfigError: as `load`.
    """
    config, path = configs.load(name, settings), configs.find(name).path
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or str(path)
    width = max(min(shutil.get_terminal_size().columns, 120), 60)
    lines = [text, "", f"Fields of {name}, with their values. Any of them: --FIELD=VALUE"]
    section = None
    for one in configs.describe(config):
        own, _, _ = one.field.rpartition(".")
        if own != section:
            lines.append("")
            section = own
        lines += _paragraph(f"--{one.field}={_shown(one.value)}", f"{one.meaning} [{one.allowed}]".strip(), width)
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return str(value)


def _paragraph(head: str, text: str, width: int) -> list[str]:
    """A field and the text about it, in two columns where the first one is short enough."""
    body = textwrap.wrap(text, width - _COLUMN, break_on_hyphens=False)
    rest = [" " * _COLUMN + line for line in body]
    if len(head) + 4 > _COLUMN:
        return [f"  {head}", *rest]
    return [f"  {head}".ljust(_COLUMN) + body[0], *rest[1:]]
