"""Writes docs/configuration.md from the settings: each key with its default and its meaning.

    make docs

A test fails if the page is not up to date.
"""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from kernelbroker_server.config import PREFIX, Settings
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

PAGE = Path(__file__).with_name("configuration.md")

_INTRODUCTION = f"""# Configuration

*Made from the settings by `make docs`; do not edit.*

Settings come from the defaults, a TOML file (`kernelbroker-server --config FILE`, or `KERNELBROKER_CONFIG`)
and the environment. The environment overrides the file. The variable of a key is its name in upper case
with the prefix `{PREFIX}`; two underscores separate section and key: `port` is
`{PREFIX}PORT`, `pool.min_size` is `{PREFIX}POOL__MIN_SIZE`. Names of templates and tenants stay
in lower case. An unknown key is an error. Durations are in seconds; sizes are bytes, or text such as
`"2GiB"`.

```toml
port = 8720
backend = "docker"

[pool]
min_size = 5

[sandbox]
memory = "1GiB"

[templates.big]            # other keys are taken from [sandbox] and [pool]
memory = "8GiB"
pool = {{ min_size = 1, max_size = 2 }}

[tenants.acme]
max_sessions = 20
```
"""


def page() -> str:
    sections = [_INTRODUCTION, *_section("", Settings)]
    return "\n".join(sections).rstrip() + "\n"


def _section(name: str, model: type[BaseModel]) -> list[str]:
    own: dict[str, FieldInfo] = {}
    below: list[tuple[str, type[BaseModel]]] = []
    for key, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is None:
            own[key] = field
        elif key != "pool" or not name:  # a template's pool has the keys of [pool]
            named = get_origin(field.annotation) is dict
            below.append((f"{key}.NAME" if named else key, inner))
    lines = [f"## [{name}]" if name else "## Top level", ""]
    if name == "templates.NAME":
        lines += ["All keys of `[sandbox]`, `pool` with keys of `[pool]`, and:", ""]
        inherited = _model_in(Settings.model_fields["sandbox"].annotation)
        assert inherited is not None
        own = {key: field for key, field in own.items() if key not in inherited.model_fields}
    lines += ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {_default(field)} | {_meaning(field)} |" for key, field in own.items()]
    lines.append("")
    lines = lines if own else []
    for inner_name, inner in below:
        lines += _section(f"{name}.{inner_name}" if name else inner_name, inner)
    return lines


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return ""  # the meaning tells how it is found
    value = field.default
    match value:
        case None | () | "":
            return ""
        case dict() if not value:
            return ""
        case ByteSize():
            return f"`{value.human_readable().replace('.0', '')}`"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return " ".join(f"`{each}`" for each in value)
        case SecretStr():
            raise ValueError("a secret has no default")
    return f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    assert field.description, "each key needs a docstring"
    text = " ".join(field.description.split()).replace("|", "\\|")
    choices = _choices(field.annotation)
    return f"{text} One of {', '.join(f'`{each}`' for each in choices)}." if choices else text


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(each) for each in get_args(annotation)]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [each for part in get_args(annotation) for each in _choices(part)]
    if isinstance(annotation, type) and hasattr(annotation, "__members__"):
        return [str(each) for each in annotation]  # type: ignore[attr-defined]
    return []


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
