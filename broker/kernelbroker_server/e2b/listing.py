"""Lists sandboxes, snapshots and templates, in pages."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from kernelbroker.protocol.errors import BadRequest

from ..api.descriptions import utc_time
from ..sessions.session import Session
from .address import ENVD_VERSION
from .sandboxes import Sandboxes, SandboxesHandler, metadata_of, state_of

_MAX_PAGE = 100
_STATES = ("running", "paused")
_NEXT = "X-Next-Token"

T = TypeVar("T")


class PagedHandler(SandboxesHandler):
    """Answers with one page of a list."""

    def reply_page(
        self, found: Sequence[T], key: Callable[[T], str], form: Callable[[T], Any]
    ) -> None:
        """Answer with the items after the one that `nextToken` names.

        Args:
            found: in order.
            key: of an item; it must grow or fall in this order.
        """
        limit = self._limit()
        after = _decoded(self.get_query_argument("nextToken", ""))
        keys = [key(each) for each in found]
        falls = len(keys) > 1 and keys[0] > keys[-1]
        start = 0
        if after:
            start = sum(1 for each in keys if (each >= after if falls else each <= after))
        page = found[start : start + limit]
        if start + limit < len(found):
            token = base64.urlsafe_b64encode(keys[start + limit - 1].encode())
            self.set_header(_NEXT, token.decode())
        self.reply([form(each) for each in page])

    def _limit(self) -> int:
        text = self.get_query_argument("limit", str(_MAX_PAGE))
        if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MAX_PAGE):
            raise BadRequest(f"limit must be a number from 1 to {_MAX_PAGE}")
        return int(text)


class SandboxList(Sandboxes, PagedHandler):
    """`GET /v2/sandboxes`, and what `Sandboxes` has."""

    async def get(self) -> None:
        found = self._found(self._states(_STATES))
        found.sort(key=_started, reverse=self.get_query_argument("order", "desc") != "asc")
        self.reply_page(found, _started, self.listed)

    def _states(self, default: Sequence[str]) -> Sequence[str]:
        states = self.get_query_argument("state", ",".join(default)).split(",")
        if unknown := set(states) - set(_STATES):
            raise BadRequest(f"state is {' or '.join(_STATES)}, not {sorted(unknown)[0]!r}")
        return states

    def _found(self, states: Sequence[str]) -> list[Session]:
        metadata = [
            (unquote(name), unquote(value))
            for name, value in parse_qsl(self.get_query_argument("metadata", ""))
        ]
        template = self.get_query_argument("template", None)
        after = self._started_after()
        return [
            each
            for each in self.tenant.sessions.list()
            if state_of(each) in states
            and all(metadata_of(each).get(name) == value for name, value in metadata)
            and (template is None or self._is(each, template))
            and (after is None or each.created_at > after)
        ]

    def _is(self, session: Session, template: str) -> bool:
        return self.surface.templates.get(template, template) == session.options.template

    def _started_after(self) -> float | None:
        text = self.get_query_argument("startedAfter", None)
        try:
            return None if text is None else datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise BadRequest("startedAfter must be a time in the form of ISO 8601") from None


class FirstSandboxList(SandboxList):
    """`GET /sandboxes`, of older clients: the running ones, without pages."""

    async def get(self) -> None:
        found = self._found(self._states(_STATES[:1]))
        self.reply([self.listed(each) for each in sorted(found, key=_started, reverse=True)])


class Templates(PagedHandler):
    """`GET /templates`: the templates of this broker, with the names of E2B's users."""

    async def get(self) -> None:
        self.reply_page(sorted(self.tenant.pools), str, self._describe)

    def _describe(self, template: str) -> dict[str, Any]:
        limits = self.tenant.pools[template].spec.limits
        names = self.surface.aliases_of(template)
        started = utc_time(time.time() - (time.monotonic() - self.service.started_at))
        return {
            "templateID": template,
            "buildID": template,
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory // 1024**2,
            "diskSizeMB": limits.workspace_size // 1024**2,
            "public": False,
            "aliases": names,
            "names": names,
            "createdAt": started,
            "updatedAt": started,
            "createdBy": None,
            "lastSpawnedAt": None,
            "spawnCount": 0,
            "buildCount": 1,
            "envdVersion": ENVD_VERSION,
            "buildStatus": "ready",
        }


class TemplateAlias(SandboxesHandler):
    """`GET /templates/aliases/NAME`: whether there is such a template."""

    async def get(self, name: str) -> None:
        template = self.surface.template_of(name, self.tenant.pools)
        self.reply({"templateID": template, "public": False})


def _started(session: Session) -> str:
    return f"{session.created_at:020.6f} {session.id}"


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadRequest("nextToken is not one of this broker") from None
