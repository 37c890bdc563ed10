"""Writes docs/rest.md from the OpenAPI document: each call, and each type of their bodies.

    make docs

A test fails if the page is not up to date.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelbroker_server.api.routes import openapi_document

PAGE = Path(__file__).with_name("rest.md")
PREFIX = "/api/v1"

_INTRODUCTION = """# Every call

*Made from the OpenAPI document by `make docs`; do not edit.*

[The API](api.md) explains the calls in context. This page has all of them with their parameters and
bodies, as in the OpenAPI 3.1 document that the broker serves at `/api/v1/openapi.json`. Paths begin with
`/api/v1`, except those of the last section. Each call takes the header `Authorization: Bearer TOKEN`
unless it says otherwise. Bodies are JSON unless another type is named. A call that is refused or fails
answers with an [ErrorEnvelope](#errorenvelope); [the errors](api.md#errors) have a list.
"""
_TITLES = {
    "exec": "Running a cell",
    "executions": "Executions",
    "assess": "Risk",
    "sessions": "Sessions",
    "files": "Files of a session",
    "contexts": "Contexts",
    "workspaces": "Workspaces",
    "checkpoints": "Checkpoints",
    "variables": "Variables and tables",
    "packages": "Packages",
    "project": "Projects",
    "people": "For people and operators",
    "": "Outside of /api/v1",
}
_AREAS = {
    **dict.fromkeys(("ended-sessions", "interrupt", "restart", "notebook"), "sessions"),
    **dict.fromkeys(("checkpoint", "fork"), "checkpoints"),
    **dict.fromkeys(("operations", "browser"), "project"),
    **dict.fromkeys(("me", "pool", "pools", "sandboxes", "audit", "confirmations"), "people"),
    **dict.fromkeys(("metrics", "risky", "tickets", "openapi.json"), "people"),
    "complete": "variables",
    "events": "executions",
}


def page() -> str:
    """Return the text of docs/rest.md."""
    document = openapi_document("")
    calls: dict[str, list[str]] = {area: [] for area in _TITLES}
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            calls[_area(path)] += _call(path, method, call)
    parts = [_INTRODUCTION]
    for area, title in _TITLES.items():
        parts += [f"## {title}", "", *calls[area]]
    parts += ["## Types", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _described_type(name, schema)
    return "\n".join(parts).rstrip() + "\n"


def _area(path: str) -> str:
    if not path.startswith(PREFIX):
        return ""
    steps = path.removeprefix(PREFIX).strip("/").split("/")
    name = steps[2] if steps[0] == "sessions" and len(steps) > 2 else steps[0]
    return _AREAS.get(name, name)


def _call(path: str, method: str, call: dict[str, Any]) -> list[str]:
    lines = [f"### {method.upper()} {path.removeprefix(PREFIX)}", "", _text(call["summary"]), ""]
    if "description" in call:
        lines += [_text(call["description"]), ""]
    if call.get("security") == []:
        lines += ["It needs no token.", ""]
    if parameters := call["parameters"]:
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        for each in parameters:
            schema = dict(each["schema"])
            meaning = _cell(schema.pop("description", ""))
            lines.append(f"| `{each['name']}` | {each['in']} | {_type(schema)} | {meaning} |")
        lines.append("")
    if body := call.get("requestBody"):
        optional = "" if body["required"] else ", which can be left out"
        lines += [f"Body{optional}: {_bodies(body)}", ""]
    for status, answer in call["responses"].items():
        if status != "default":
            lines.append(f"- **{status}** {answer['description']}{_after(_bodies(answer))}")
    return [*lines, ""]


def _bodies(described: dict[str, Any]) -> str:
    contents = described.get("content", {}).items()
    return "; ".join(
        _type(content["schema"]) + ("" if kind == "application/json" else f" as `{kind}`")
        for kind, content in contents
    )


def _after(text: str) -> str:
    return f": {text}" if text else ""


def _described_type(name: str, schema: dict[str, Any]) -> list[str]:
    text, _, attributes = inspect.cleandoc(schema.get("description", "")).partition("Attributes:")
    meanings = dict(_meanings(attributes))
    lines = [f"### {name}", ""]
    if text.strip():
        lines += [_text(text.strip()), ""]
    fields = schema.get("properties", {})
    if not fields:
        return [*lines, _type({k: v for k, v in schema.items() if k != "title"}), ""]
    lines += ["| field | type | if left out | meaning |", "|---|---|---|---|"]
    for field, described in fields.items():
        missing = "required" if field in schema.get("required", ()) else _default(described)
        meaning = _cell(described.get("description", "") or meanings.get(field, ""))
        lines.append(f"| `{field}` | {_type(described)} | {missing} | {meaning} |")
    return [*lines, ""]


def _meanings(attributes: str) -> Iterator[tuple[str, str]]:
    """Read the section `Attributes:` of a docstring: each name with its text."""
    entry = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n     +.*)*)", re.MULTILINE)
    for names, text in entry.findall(attributes):
        for name in names.split(", "):
            yield name, text


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    return "" if default in (None, [], {}) else f"`{json.dumps(default)}`"


def _type(schema: dict[str, Any]) -> str:
    """Return a schema as a few words, with links to the types of this page."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": alternatives}:
            return " or ".join(dict.fromkeys(map(_type, alternatives)))
        case {"enum": values}:
            return ", ".join(f"`{json.dumps(value)}`" for value in values)
        case {"type": "array", "items": items} if items is not False:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict() as values}:
            return f"object of {_type(values)}"
        case {"type": kind}:
            return str(kind) + _bounds(schema)
    return "any JSON"


def _bounds(schema: dict[str, Any]) -> str:
    least = schema.get("minimum", schema.get("minLength", schema.get("minItems")))
    most = schema.get("maximum", schema.get("maxLength", schema.get("maxItems")))
    above = schema.get("exclusiveMinimum")
    bounds = [
        *([f"at least {least}"] if least is not None else []),
        *([f"above {above}"] if above is not None else []),
        *([f"at most {most}"] if most is not None else []),
    ]
    return f" ({', '.join(bounds)})" if bounds else ""


def _cell(text: str) -> str:
    return _text(" ".join(text.split())).replace("|", "\\|")


def _text(text: str) -> str:
    """A docstring's text as Markdown."""
    return text.replace("<", "&lt;") if "`" not in text else text


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
