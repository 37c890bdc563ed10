"""What a tool is: a name, a model of its arguments, a model of its output, and a coroutine function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from mcp_types import CallToolResult, InputRequiredResult, Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

if TYPE_CHECKING:
    from .call import Call

ToolResult: TypeAlias = CallToolResult | InputRequiredResult | dict[str, Any]
"""A dict is the handle of a task; see `tasks.py`."""

SessionId: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]


class Arguments(BaseModel):
    """The arguments of a tool. An unknown one is refused, so that a misspelt one is reported."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class InSession(Arguments):
    """Arguments of a tool that works in a session."""

    session_id: SessionId | None = None
    """The session, as an earlier result named it. Without one a new session is opened."""


class Output(BaseModel):
    """The structured content of a result."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    session_id: str
    """Pass this to the next call, to go on with the same variables and files."""


class _Schema(GenerateJsonSchema):
    """JSON schemas without the titles that repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool.

    Attributes:
        run: its docstring is the description for models.
        annotations: hints for clients.
        meta: of the definition, such as the page that shows its results.
    """

    name: str
    title: str
    arguments: type[Arguments]
    output: type[Output]
    run: Callable[[Call, Any], Awaitable[ToolResult]]
    annotations: ToolAnnotations
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def definition(self) -> Tool:
        """The definition for clients."""
        return Tool(
            name=self.name,
            title=self.title,
            description=inspect.getdoc(self.run),
            input_schema=_schema(self.arguments),
            output_schema=_schema(self.output, mode="serialization"),
            annotations=self.annotations,
            _meta=dict(self.meta) or None,
        )


def hints(
    *,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
) -> ToolAnnotations:
    """Return what clients may believe of a tool. All are stated, since the defaults assume the worst."""
    return ToolAnnotations(
        read_only_hint=read_only,
        destructive_hint=destructive,
        idempotent_hint=idempotent,
        open_world_hint=open_world,
    )


@cache
def _schema(model: type[BaseModel], mode: Any = "validation") -> dict[str, Any]:
    """Return the JSON Schema of a model, which is the same for all addresses that serve the tool."""
    schema = model.model_json_schema(schema_generator=_Schema, mode=mode)
    schema.pop("title", None)
    schema.pop("description", None)
    for each in schema.get("properties", {}).values():
        _leave_null_out(each)
    return schema


def _leave_null_out(schema: dict[str, Any]) -> None:
    """Describe an optional value by its type alone; null is accepted. Not every client knows `anyOf`."""
    kinds = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        if schema.get("default", ...) is None:
            del schema["default"]
        schema.update({key: value for key, value in kinds[0].items() if key not in schema})
