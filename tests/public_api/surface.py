"""What users of kernelbroker may rely on, as facts: one line for each name, parameter, field and option.

    make public-api         write the facts of this version to released.txt, when it is released

`test_public_api.py` compares the present facts with those of the last release. docs/versions.md says what
may change when.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from kernelbroker import cli
from kernelbroker.grpc import sandbox_code_pb2
from kernelbroker_server.__main__ import _parser as server_parser
from kernelbroker_server.api.routes import openapi_document
from kernelbroker_server.config import Settings
from pydantic import BaseModel

RELEASED = Path(__file__).with_name("released.txt")
_MODULES = (
    "kernelbroker",
    "kernelbroker.sync",
    "kernelbroker.agents",
    "kernelbroker.analysis",
    "kernelbroker.langchain",
    "kernelbroker.ports",
    "kernelbroker.risk",
)
"""Modules whose `__all__` is public."""
_EVENTS = "kernelbroker.events"
_METHODS = ("get", "put", "post", "patch", "delete", "head")


def facts() -> set[str]:
    """Everything that is public in this version."""
    return {*_of_sdk(), *_of_api(), *_of_commands(), *_of_settings(), *_of_grpc()}


def page() -> str:
    """The content of released.txt."""
    return "\n".join([f"# kernelbroker {source_version()}", *sorted(facts()), ""])


def source_version() -> str:
    """The version of this tree, whatever is installed."""
    text = (Path(__file__).parents[2] / "setup.cfg").read_text()
    found = re.search("^version = (.+)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


# The SDK. A parameter is `optional` or `required`, and has a place if it may be given by position.


def _of_sdk() -> Iterator[str]:
    for module in _MODULES:
        imported = importlib.import_module(module)
        for name in imported.__all__:
            yield from _of_member(f"sdk {module}.{name}", getattr(imported, name))
    events = importlib.import_module("kernelbroker.protocol.events")
    for name, member in vars(events).items():
        if inspect.isclass(member) and member.__module__ == events.__name__ and name[0] != "_":
            yield from _of_member(f"sdk {_EVENTS}.{name}", member)


def _of_member(name: str, member: Any) -> Iterator[str]:
    yield name
    if inspect.isclass(member):
        yield from _of_class(name, member)
    elif inspect.isfunction(member):
        yield from of_function(name, member)


def _of_class(name: str, member: type[Any]) -> Iterator[str]:
    if issubclass(member, Exception):
        yield from (f"{name} is a {base.__name__}" for base in member.__mro__[1:-3])
    if issubclass(member, msgspec.Struct):
        yield from (f"{name}.{field}" for field in member.__struct_fields__)
    elif dataclasses.is_dataclass(member):
        yield from (f"{name}.{field.name}" for field in dataclasses.fields(member))
    for label in dir(member):
        found = inspect.getattr_static(member, label)
        function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if label == "__init__" and inspect.isfunction(function):
            yield from of_function(name, function)
        elif label.startswith("_") or not _is_ours(found, function):
            continue
        elif inspect.isfunction(function):
            yield f"{name}.{label}"
            yield from of_function(f"{name}.{label}", function)
        else:
            yield f"{name}.{label}"


def _is_ours(found: object, function: Any) -> bool:
    if isinstance(found, property):
        return True
    return inspect.isfunction(function) and function.__module__.startswith("kernelbroker")


def of_function(name: str, function: Any) -> Iterator[str]:
    """The facts of a function's signature."""
    signature = inspect.signature(function)
    is_awaited = inspect.iscoroutinefunction(function)
    yield f"{name} is awaited" if is_awaited else f"{name} is not awaited"
    if signature.return_annotation is not signature.empty:
        answer = str(signature.return_annotation).strip("'")
        yield f"{name} returns {answer}"
    place = 0
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        by_name = f"{name}({parameter.name})"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"{name}({parameter})".partition(":")[0]
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            yield f"{by_name} at {place}"
            place += 1
        yield f"{by_name} {_need(parameter.default is parameter.empty)}"


def _need(is_required: bool) -> str:
    return "required" if is_required else "optional"


# The API, by its OpenAPI document. Fields of answers are there `always` or `sometimes`.


def _of_api() -> Iterator[str]:
    document = openapi_document("0")
    schemas = document["components"]["schemas"]
    asked, answered = set[str](), set[str]()
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if (described := methods.get(method)) is None:
                continue
            name = f"api {method.upper()} {path}"
            yield name
            for parameter in described["parameters"]:
                yield f"{name} {parameter['in']} {parameter['name']} {_need(parameter['required'])}"
            for kind, content in described.get("requestBody", {}).get("content", {}).items():
                yield f"{name} takes {kind}"
                asked |= _references(content["schema"], schemas)
            for status, response in described["responses"].items():
                yield f"{name} answers {status}"
                for kind, content in response.get("content", {}).items():
                    yield f"{name} answers {status} {kind}"
                    answered |= _references(content["schema"], schemas)
    for name in asked:
        yield from _of_fields(f"api request {name}", schemas[name], "required", "optional")
    for name in answered:
        yield from _of_fields(f"api answer {name}", schemas[name], "always", "sometimes")


def _of_fields(
    name: str, schema: Mapping[str, Any], in_list: str, not_in_list: str
) -> Iterator[str]:
    for field, described in schema.get("properties", {}).items():
        need = in_list if field in schema.get("required", ()) else not_in_list
        yield f"{name}.{field}"
        yield f"{name}.{field} {need}"
        for kind in _kinds(described):
            yield f"{name}.{field} may be {kind}"


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """The types that a value may have."""
    for each in schema.get("anyOf", ()):
        yield from _kinds(each)
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    if "type" in schema:
        yield str(schema["type"])
    for value in schema.get("enum", ()):
        yield repr(value)


def _references(schema: Any, schemas: Mapping[str, Any]) -> set[str]:
    """The names of the schemas that a schema consists of."""
    found: set[str] = set()
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            name = str(each.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                left.append(schemas[name])
            left += each.values()
    return found


# The command lines and the settings.


def _of_commands() -> Iterator[str]:
    for name, parser in (("kernelbroker", cli.parser()), ("kernelbroker-server", server_parser())):
        yield from _of_parser(f"command {name}", parser)


def _of_parser(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    place = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield f"{name} {command}"
                yield from _of_parser(f"{name} {command}", below)
        elif action.option_strings:
            for option in action.option_strings:
                yield f"{name} {option}"
            if action.required:
                yield f"{name} {action.option_strings[-1]} required"
        else:
            need = _need(action.nargs not in ("?", "*", argparse.REMAINDER))
            yield f"{name} {action.dest} at {place}"
            yield f"{name} {action.dest} {need}"
            place += 1


def _of_settings(model: type[BaseModel] = Settings, prefix: str = "setting ") -> Iterator[str]:
    for key, field in model.model_fields.items():
        yield f"{prefix}{key}"
        if field.is_required():
            yield f"{prefix}{key} required"
        for each in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield from _of_settings(each, f"{prefix}{key}.")


def _of_grpc() -> Iterator[str]:
    described = sandbox_code_pb2.DESCRIPTOR
    for service in described.services_by_name.values():
        for method in service.methods:
            stream = " stream" if method.server_streaming else ""
            yield (
                f"grpc {service.full_name}.{method.name} takes {method.input_type.name} "
                f"answers{stream} {method.output_type.name}"
            )
    for message in described.message_types_by_name.values():
        for field in message.fields:
            yield f"grpc {message.full_name}.{field.name} is {field.number} of type {field.type}"


if __name__ == "__main__":
    RELEASED.write_text(page())
    sys.stdout.write(f"wrote {RELEASED}\n")
