"""The messages of all errors, read from the sources.

`python -m tests.documentation.messages` writes messages.txt. A message that is new or has changed shows in
the difference of that file, and is so read once as users will see it.

"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("messages.txt")
_PACKAGES = ("sdk/kernelbroker", "broker/kernelbroker_server", "kernel_image/kernelbroker_kernel")
_NOT_SEEN = {"AssertionError", "NotImplementedError", "AttributeError"}
_HEAD = """\
The messages of all errors. `python -m tests.documentation.messages` writes this file.
Read what changes: it is what users see. What is between braces is inserted.
"""


def messages() -> Iterator[tuple[str, str]]:
    """The class and the text of each error that is raised with a message, in braces what is inserted."""
    for package in _PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if file.name.endswith(("_pb2.py", "_pb2_grpc.py")):  # generated
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = ast.unparse(node.exc.func).rpartition(".")[2]
                    given = [*node.exc.args, *(each.value for each in node.exc.keywords)]
                    texts = [text for each in given if (text := _text(each)) is not None]
                    if texts and name not in _NOT_SEEN:
                        yield name, max(texts, key=len)


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(each) or "" for each in values)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{_text(left) or '{…}'}{_text(right) or '{…}'}"
    return None


def table() -> str:
    lines = sorted({f"{name}: {text}" for name, text in messages()})
    return _HEAD + "\n" + "\n".join(line.replace("\n", "\\n") for line in lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())
