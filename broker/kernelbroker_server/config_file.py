"""Loads the settings from the defaults, a TOML file and the environment; later ones override earlier ones.

A key of the file is named as in `config.py` (`port = 8720`, `[pool] min_size = 5`). A variable of the
environment is the key in upper case with a prefix (`KERNELBROKER_PORT`, `KERNELBROKER_POOL__MIN_SIZE`). An
unknown key is an error that names the key and its source.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from .config import PREFIX, ConfigError, Settings

_FOR_CLIENTS = {"KERNELBROKER_URL", "KERNELBROKER_RUNTIME_FILE", "KERNELBROKER_CONFIG"}
"""Variables with this prefix that are not settings of the broker."""
_UNKNOWN = "no such setting (see docs/configuration.md)"
_NAMED = (f"{PREFIX}TEMPLATES__", f"{PREFIX}TENANTS__", f"{PREFIX}UPSTREAMS__")
"""Sections whose keys are chosen by the operator."""


def load(path: Path | None) -> Settings:
    """Load the settings.

    Args:
        path: the file; the one that KERNELBROKER_CONFIG names, if any, if left out.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or the file cannot be read.
    """
    if path is None and (named := os.environ.get("KERNELBROKER_CONFIG")):
        path = Path(named)
    _refuse_unknown_variables()
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text())
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from exc
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
    try:
        return Settings(**content)
    except (
        SettingsError
    ) as exc:  # a section in one variable that is not JSON; the message has no value
        raise ConfigError(f"in the environment: {exc}") from exc
    except ValidationError as exc:
        where = f"{path} or the environment" if path else "the environment"
        raise ConfigError(f"in {where}: " + "; ".join(_problems(exc))) from exc


def _problems(exc: ValidationError) -> list[str]:
    """The message of each error, once for each key."""
    messages = {}
    for error in exc.errors(include_input=False):  # a value may be a secret
        key = ".".join(str(part) for part in error["loc"])
        unknown = error["type"] == "extra_forbidden"
        messages[key] = _UNKNOWN if unknown else error["msg"].removeprefix("Value error, ")

    def is_inherited(key: str) -> bool:  # each template repeats the errors of [sandbox] and [pool]
        own = key.split(".", 2)[-1]
        source = own if own.startswith("pool.") else f"sandbox.{own}"
        return key.startswith("templates.") and source in messages

    return [
        f"{key}: {message}".removeprefix(": ")
        for key, message in messages.items()
        if not is_inherited(key)
    ]


def _refuse_unknown_variables() -> None:
    known = set()
    for name, field in Settings.model_fields.items():
        known.add(f"{PREFIX}{name}".upper())
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            known.update(f"{PREFIX}{name}__{key}".upper() for key in section.model_fields)
    for variable in os.environ:
        name = variable.upper()
        if name.startswith(_NAMED):  # pydantic checks the keys below the names
            continue
        if name.startswith(PREFIX) and name not in known | _FOR_CLIENTS:
            raise ConfigError(f"{variable}: {_UNKNOWN}")
