"""Fields of a tuple that are explained by a comment behind them are explained in the reference
too.
"""

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Adds a section "Attributes" to classes whose docstring has none, from the comments of
    their fields.
    """

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called by griffe with every class of the package."""
        ours = cls.path.startswith("fedjax_ssl.")
        if not ours or cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        found = {
            name: field.source.partition("  # ")[2].partition("\n")[0]
            for name, field in cls.attributes.items()
            if not (name.startswith("_") or field.docstring)
        }
        if any(found.values()):
            lines = [f"    {name}: {comment}" for name, comment in found.items()]
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)
