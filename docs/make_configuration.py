"""Writes docs/configuration.md from the settings themselves: every key, its default, what it means.

    make docs

A test fails where the page is not what this makes.
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
and the environment; the later of these wins. In the environment a key is upper case with a
prefix, sections joined by two underscores: `port` is `{PREFIX}PORT`, `pool.min_size` is
`{PREFIX}POOL__MIN_SIZE`; names of templates and tenants are lower case there. A key that is
not known is an error that names it. Durations are in seconds; sizes are bytes, or text such as `"2GiB"`.

```toml
port = 8720
backend = "docker"

[pool]
min_size = 5

[sandbox]
memory = "1GiB"

[templates.big]            # what it does not say is as [sandbox] and [pool] have it
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
        elif key != "pool" or not name:  # a template's pool is as [pool]
            named = get_origin(field.annotation) is dict
            below.append((f"{key}.NAME" if named else key, inner))
    lines = [f"## [{name}]" if name else "## At the top", ""]
    if name == "templates.NAME":
        lines += ["All keys of `[sandbox]`, `pool` with keys of `[pool]`, and:", ""]
        inherited = _model_in(Settings.model_fields["sandbox"].annotation)
        assert inherited is not None
        own = {key: field for key, field in own.items() if key not in inherited.model_fields}
    lines += ["| key | default | |", "|---|---|---|"]
    lines += [f"| `{key}` | {_default(field)} | {_meaning(field)} |" for key, field in own.items()]
    lines.append("")
    for inner_name, inner in below:
        lines += _section(inner_name, inner)
    return lines


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _default(field: FieldInfo) -> str:
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
    assert field.description, "every key is documented where it is defined"
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
