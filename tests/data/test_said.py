"""docs/data_messages.md lists what a run says about its data: the sentences stand in the code, and this puts
them together.

python -m tests.data.test_said      # writes the list anew
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "data",
    "runs/advice.py",
    "runs/notes.py",
    "objectives/channel_checks.py",
    "methods/protofssl.py",
    "trained/inputs.py",
)
LISTS = ("notes", "found", "reasons")  # names of the lists that sentences are put into
PAGE = ROOT / "docs" / "data_messages.md"
START = "<!-- said: start -->\n"
END = "<!-- said: end -->"


def said() -> list[str]:
    """Every sentence once, in the order of the files, with … for what depends on the data."""
    found: list[str] = []
    for place in PLACES:
        path = ROOT / "fedjax_ssl" / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
            by_name = {one.name: one for one in functions}
            for function in functions:
                found += _Sentences(by_name, function).found
    return [sentence for sentence in dict.fromkeys(found) if re.search(r"^[^(]*\w+ \w+", sentence)]


class _Sentences:
    """The sentences of one function."""

    def __init__(self, functions: dict[str, ast.FunctionDef], function: ast.FunctionDef):
        self.functions = functions
        self.values: dict[str, ast.expr] = {}
        for one in ast.walk(function):
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                self.values.setdefault(one.targets[0].id, one.value)
            elif isinstance(one, ast.NamedExpr):
                self.values.setdefault(one.target.id, one.value)
        self.found: list[str] = []
        for one in ast.walk(function):
            if isinstance(one, ast.Call) and self._says(one):
                self.add(one.args[0])
            elif (isinstance(one, ast.Yield) and isinstance(one.value, ast.JoinedStr)) or (
                isinstance(one, ast.AugAssign) and _last_name(one.target) in LISTS
            ):
                self.add(one.value)
            # (dataset, what was done to it)
            elif isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple):
                self.add(one.value.elts[-1])

    @staticmethod
    def _says(call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append":
            return _last_name(call.func.value) in LISTS
        return _last_name(call.func) == "note"

    def add(self, node: ast.expr) -> None:
        if isinstance(node, ast.List | ast.Tuple):
            for one in node.elts:
                self.add(one)
        elif isinstance(node, ast.ListComp):
            self.add(node.elt)
        else:
            text = re.sub(r"\s+", " ", re.sub(r"(… ?)+", "… ", self.text(node)))
            self.found.append(re.sub(r"… (?=[),;:?])", "…", text).strip(" ,;"))

    def text(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.JoinedStr(values=parts):
                return "".join(map(self.text, parts))
            case ast.FormattedValue(value=value):
                return self.text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left) + self.text(right)
            case ast.BinOp(left=left, op=ast.Mult()):
                return self.text(left) if isinstance(left, ast.JoinedStr | ast.Constant) else "…"
            case ast.IfExp(body=body, orelse=orelse):
                both = [text for text in (self.text(body), self.text(orelse)) if text]
                return " | ".join(dict.fromkeys(both))
            case ast.Call(func=ast.Name("counted"), args=[_, *forms]):
                plural = self.text(forms[-1])
                return f"… {plural}{'s' * (len(forms) == 1)}"
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(form)), attr="format")):
                return re.sub(r"{.*?}", "…", form)
            case ast.Call(func=ast.Name(name)) if name in self.functions:
                returns = [
                    one.value
                    for one in ast.walk(self.functions[name])
                    if isinstance(one, ast.Return)
                ]
                return (
                    self.text(returns[0])
                    if returns and isinstance(returns[0], ast.JoinedStr)
                    else "…"
                )
            case ast.Name(name) if isinstance(
                self.values.get(name), ast.JoinedStr | ast.Constant | ast.IfExp | ast.BinOp
            ):
                value = self.values.pop(name)  # once: it may be made of itself
                text = self.text(value)
                self.values[name] = value
                return text
        return "…"


def _last_name(node: ast.AST) -> str:
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def _listed() -> str:
    return "".join(f"- {sentence}\n" for sentence in said())


def test_the_page_lists_what_is_said() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(START)[2].partition(END)[0] == _listed(), (
        "run: python -m tests.data.test_said"
    )


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + _listed() + END + rest.partition(END)[2], encoding="utf-8")
