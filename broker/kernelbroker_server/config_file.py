"""Where the settings come from: the defaults, a TOML file and the environment, in this order.

In the file a key stands as it is named in `config.py` (`port = 8720`, `[pool] min_size = 5`); in the
environment it is upper case with a prefix (`KERNELBROKER_PORT`, `KERNELBROKER_POOL__MIN_SIZE`). A key
that is not known is an error that names it and where it stands.
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
"""Variables of this prefix that are not settings."""
_UNKNOWN = "no such setting (see docs/configuration.md)"
_NAMED = (f"{PREFIX}TEMPLATES__", f"{PREFIX}TENANTS__")
"""Sections whose keys are names of the operator's own."""


def load(path: Path | None) -> Settings:
    """The settings from a file, if one is given or named by KERNELBROKER_CONFIG, and the environment.

    Raises:
        ConfigError: a key is not known, a value does not fit, or the file cannot be read.
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
    except SettingsError as exc:  # a section in one variable, and not JSON; tells no value
        raise ConfigError(f"in the environment: {exc}") from exc
    except ValidationError as exc:
        where = f"{path} or the environment" if path else "the environment"
        raise ConfigError(f"in {where}: " + "; ".join(_problems(exc))) from exc


def _problems(exc: ValidationError) -> list[str]:
    """Each mistake by its key, once."""
    told = {}
    for error in exc.errors(include_input=False):  # never echo a value: it may be a secret
        key = ".".join(str(part) for part in error["loc"])
        unknown = error["type"] == "extra_forbidden"
        told[key] = _UNKNOWN if unknown else error["msg"]

    def is_inherited(key: str) -> bool:  # every template has wrong what [sandbox] and [pool] have
        own = key.split(".", 2)[-1]
        source = own if own.startswith("pool.") else f"sandbox.{own}"
        return key.startswith("templates.") and source in told

    return [f"{key}: {message}" for key, message in told.items() if not is_inherited(key)]


def _refuse_unknown_variables() -> None:
    known = set()
    for name, field in Settings.model_fields.items():
        known.add(f"{PREFIX}{name}".upper())
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            known.update(f"{PREFIX}{name}__{key}".upper() for key in section.model_fields)
    for variable in os.environ:
        name = variable.upper()
        if name.startswith(_NAMED):  # pydantic looks at what stands below the names
            continue
        if name.startswith(PREFIX) and name not in known | _FOR_CLIENTS:
            raise ConfigError(f"{variable}: {_UNKNOWN}")
