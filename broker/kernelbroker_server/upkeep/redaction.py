"""Removes secrets from texts: those that are known from settings and files, and what looks like one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelbroker.protocol.runtime_file import runtime_file
from pydantic import BaseModel, SecretStr

from ..config import Settings

REMOVED = "[removed]"
_IN_URL = re.compile(r"://([^/:@\s]*):([^/@\s]+)@")
_SHORTEST = 6
"""A shorter value would be found in innocent words."""
_MAX_FILE = 65_536
_SECRET_NAME = re.compile("token|secret|passw|key|credential|auth", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"\bkb_[0-9a-f]{12}_[0-9a-f]{16,}"),  # tokens of tenants
    re.compile(r"\be2b_[0-9a-f]{16,}"),
    re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"),
    re.compile(
        r"\b(?:sk|pk|ghp|gho|ghs|glpat|xox[abp])[-_][A-Za-z0-9_-]{12,}"
    ),  # of other services
    re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # JSON Web Tokens
    re.compile(r"(?i)(?<=bearer )[^\s\"']+"),
    re.compile(r"(?<=://)[^/\s@\"']+(?=@)"),  # user and password of a URL
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
)


class Redactor:
    """Removes the secrets of a broker from texts."""

    def __init__(self, settings: Settings | None, environ: Mapping[str, str] = os.environ) -> None:
        found = {*_of_environment(environ), *_of_runtime_file(environ)}
        if settings is not None:
            found |= {*_of_settings(settings), *_of_files(settings)}
        # The longest first, since one may contain another.
        self._secrets = sorted(
            (each for each in found if len(each) >= _SHORTEST), key=len, reverse=True
        )

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for secret in self._secrets:
            for form in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
                text = text.replace(form, REMOVED)
        for pattern in _PATTERNS:
            text = pattern.sub(REMOVED, text)
        return text


def settings_without_secrets(settings: Settings) -> dict[str, Any]:
    """The settings for JSON, with the names of environment variables, and without their values."""
    plain: dict[str, Any] = json.loads(settings.model_dump_json())  # secrets are stars
    _hide_values(plain)
    return plain


def _hide_values(plain: Any) -> None:
    if isinstance(plain, dict):
        for key, value in plain.items():
            if key == "env" and isinstance(value, dict):
                plain[key] = dict.fromkeys(value, REMOVED)
            else:
                _hide_values(value)
    elif isinstance(plain, list):
        for each in plain:
            _hide_values(each)


def _of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and not name.upper().endswith("_FILE"):
            yield from _values(value)


def _of_runtime_file(environ: Mapping[str, str]) -> Iterator[str]:
    try:
        yield str(json.loads(runtime_file(environ, os.getuid()).read_text())["token"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        return


def _of_settings(value: Any, *, is_environment: bool = False) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield from _values(value.get_secret_value())
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _of_settings(getattr(value, name), is_environment=name == "env")
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _of_settings(each, is_environment=is_environment)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _of_settings(each)
    elif isinstance(value, str):
        if is_environment:
            yield from _values(value)
        yield from (password for _, password in _IN_URL.findall(value))


def _of_files(settings: Settings) -> Iterator[str]:
    named = [settings.token_file, *(each.token_file for each in settings.upstreams.values())]
    named += [each.token_file for each in settings.code.forges]
    for path in named:
        if path is not None:
            yield from _content(path)


def _content(path: Path) -> Iterable[str]:
    try:
        with path.open(errors="replace") as file:
            return list(_values(file.read(_MAX_FILE)))
    except OSError:
        return ()


def _values(text: str) -> Iterator[str]:
    """The value, and what it is composed of if it has several lines."""
    yield text
    for line in text.splitlines():
        yield line.strip()
