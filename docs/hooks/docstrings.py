"""What the reference adds to docstrings: comments of fields as their descriptions, and examples as
code.
"""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Rewrites docstrings of the package before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe with every object: an `Example:` of prompts is shown as code."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"(?m)^Example:$(?=\n +>>>)", "Examples:", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called by griffe with every class: fields are described by the comments at them, where
        the docstring has no section for it.
        """
        ours = cls.path.startswith("fedjax_ssl.")
        if not ours or cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        fields = {name: field for name, field in cls.attributes.items() if not field.docstring}
        found = {name: _comment(field) for name, field in fields.items() if name[0] != "_"}
        if any(found.values()):
            lines = [f"    {name}: {comment}" for name, comment in found.items()]
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)


def _comment(field: griffe.Attribute) -> str:
    """Return the comment behind a field, or below it: a first line with `# ^` and those after it.

    A comment above a field may head a group of several, and is left out.
    """
    file = field.lines_collection[field.filepath]
    last = field.endlineno
    behind = file[last - 1].partition("  # ")[2]
    below = []
    for line in file[last:]:
        text = line.strip()
        heading = text[2:3].isupper() and text.endswith(".")  # of the fields that follow
        if not text.startswith("# " if below else "# ^") or heading:
            break
        below.append(text.removeprefix("#").strip().removeprefix("^ "))
    return " ".join([behind, *below]).strip()
