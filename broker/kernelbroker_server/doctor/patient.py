"""What the checks look at: the settings, the directories that follow from them, and a broker that runs."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from kernelbroker.protocol.runtime_file import runtime_file

from .. import factories, state_factory
from ..config import Settings
from ..paths import data_dir, run_dir

_TIMEOUT_S = 5.0
_MAX_ANSWER = 1024**2


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that answers.

    Attributes:
        pid: its process; None if the runtime file does not have it.
        health: its answer to `GET /health`.
    """

    url: str
    pid: int | None
    health: Mapping[str, Any]


class Patient:
    """The subject of the checks.

    Args:
        settings: those of the broker.
        source: where they are from, for messages.
        config: the file that they are from, if the caller has named one.
    """

    def __init__(self, settings: Settings, source: str, config: Path | None = None) -> None:
        self.settings = settings
        self.source = source
        self.config = config

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends that templates use, that of the workspaces first."""
        templates = self.settings.templates
        ordered = [templates["default"], *templates.values()]
        return tuple(dict.fromkeys(factories.backend_name(self.settings, each) for each in ordered))

    def data_dir(self, backend: str) -> Path:
        return data_dir(self.settings, backend).absolute()

    def run_dir(self, backend: str) -> Path:
        return run_dir(self.settings, backend).absolute()

    @cached_property
    def state_dir(self) -> Path | None:
        """The state directory; None if nothing is kept on the disk."""
        return state_factory.state_directory(self.settings, self.data_dir(self.backends[0]))

    @cached_property
    def running(self) -> RunningBroker | None:
        """The broker of these settings, or of this user, that runs now; None if none answers."""
        for url, pid in self._candidates():
            health = _health(url)
            if health is not None:
                return RunningBroker(url, pid, health)
        return None

    def _candidates(self) -> Iterator[tuple[str, int | None]]:
        try:
            found = json.loads(runtime_file(os.environ, os.getuid()).read_text())
            yield str(found["url"]), int(found["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if self.settings.port:
            scheme = "http" if self.settings.tls.certificate is None else "https"
            host = self.settings.host
            if host in ("0.0.0.0", "::", ""):
                host = "127.0.0.1"
            host = f"[{host}]" if ":" in host else host
            yield f"{scheme}://{host}:{self.settings.port}", None


def _health(url: str) -> Mapping[str, Any] | None:
    """The health of the broker at this URL; None if there is none."""
    # The certificate is not verified: the request stays on this machine and carries no secret.
    context = ssl._create_unverified_context()
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(f"{url}/health", timeout=_TIMEOUT_S) as response:
            answer = json.loads(response.read(_MAX_ANSWER))
    except (OSError, ValueError):  # URLError is an OSError
        return None
    if isinstance(answer, dict) and {"status", "version", "pool"} <= answer.keys():
        return answer
    return None
