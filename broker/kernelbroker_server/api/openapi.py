"""Generates the OpenAPI 3.1 document of the API.

Paths come from the routes, descriptions from the handlers' docstrings, and schemas from the protocol's
types. The decorator `operation` declares what a handler's method takes and returns.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.messages import ErrorEnvelope
from tornado.web import RequestHandler

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Content:
    """A body with other media types than JSON: their schemas by media type."""

    types: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        returns: the bodies of successful answers by status: a type, a `Content`, or None for no body.
        body: the request's body: a type, a `Content`, or None.
        query: the types of the query parameters, by name.
        open: no token is needed.
    """

    returns: Mapping[int, Any]
    body: Any = None
    query: Mapping[str, Any] | None = None
    open: bool = False


def operation(
    returns: Mapping[int, Any],
    *,
    body: Any = None,
    query: Mapping[str, Any] | None = None,
    open: bool = False,
) -> Callable[[F], F]:
    """Declare what a handler's method takes and returns; see `Operation`."""

    def describe(method: F) -> F:
        method.operation = Operation(returns, body, query, open)  # type: ignore[attr-defined]
        return method

    return describe


def methods_of(handler: type[RequestHandler]) -> list[str]:
    """Return the HTTP methods that a handler implements, in upper case."""
    unimplemented = RequestHandler._unimplemented_method
    methods = RequestHandler.SUPPORTED_METHODS
    return [each for each in methods if getattr(handler, each.lower()) is not unimplemented]


def document(
    routes: Iterable[tuple[str, type[RequestHandler]]],
    parameters: Mapping[str, Any],
    version: str,
) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: paths with their handlers.
        parameters: the types of the path parameters, by name.
    """
    described = [
        (path, method.lower(), getattr(handler, method.lower()))
        for path, handler in routes
        for method in methods_of(handler)
        if hasattr(getattr(handler, method.lower()), "operation")
    ]
    types = [ErrorEnvelope, *parameters.values()]
    for _, _, function in described:
        types += _types_of(function.operation)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = _Schemas(types, schemas)
    paths: dict[str, dict[str, Any]] = {}
    for path, method, function in described:
        inside = [_parameter("path", name, parameters[name], schema_of) for name in _names(path)]
        paths.setdefault(path, {})[method] = _operation(path, method, function, inside, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kernelbroker", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """Looks up a type's schema; types need not be hashable."""

    def __init__(self, types: list[Any], schemas: tuple[dict[str, Any], ...]) -> None:
        self._known = list(zip(types, schemas, strict=True))

    def __call__(self, type_: Any) -> dict[str, Any]:
        return next(schema for known, schema in self._known if known is type_)


def _types_of(operation: Operation) -> list[Any]:
    found = [*(operation.query or {}).values()]
    for each in (operation.body, *operation.returns.values()):
        if isinstance(each, Content):
            found += each.types.values()
        elif each is not None:
            found.append(each)
    return found


def _operation(
    path: str, method: str, function: Any, inside: list[Any], schema_of: _Schemas
) -> dict[str, Any]:
    said: Operation = function.operation
    summary, _, more = (inspect.getdoc(function) or "").partition("\n\n")
    query = said.query or {}
    described: dict[str, Any] = {
        "operationId": f"{method}{re.sub(r'[^a-z]+', '_', path.removeprefix('/api/v1'))}".strip(
            "_"
        ),
        "summary": summary,
        "parameters": inside + [_parameter("query", n, t, schema_of) for n, t in query.items()],
        "responses": {
            str(status): {
                "description": HTTPStatus(status).phrase,
                **_content(returned, schema_of),
            }
            for status, returned in said.returns.items()
        }
        | {
            "default": {
                "description": "refused or failed; the message says what to do",
                **_content(ErrorEnvelope, schema_of),
            }
        },
    }
    if more:
        described["description"] = more
    if said.body is not None:
        described["requestBody"] = {
            **_content(said.body, schema_of),
            "required": not isinstance(said.body, Content) and _has_required_fields(said.body),
        }
    if said.open:
        described["security"] = []
    return described


def _content(body: Any, schema_of: _Schemas) -> dict[str, Any]:
    if body is None:
        return {}
    types = body.types if isinstance(body, Content) else {"application/json": body}
    return {"content": {name: {"schema": schema_of(type_)} for name, type_ in types.items()}}


def _parameter(where: str, name: str, type_: Any, schema_of: _Schemas) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema_of(type_)}


def _has_required_fields(type_: type[msgspec.Struct]) -> bool:
    return hasattr(type_, "__struct_fields__") and any(
        field.required for field in msgspec.structs.fields(type_)
    )


def _names(path: str) -> list[str]:
    return _PARAMETER.findall(path)
