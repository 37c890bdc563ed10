"""Pushing the work of a session to a forge, and opening a pull request for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from kernelbroker.protocol.errors import BadRequest, Conflict
from kernelbroker.protocol.operations import CodeOperationResponse
from kernelbroker.protocol.wrong_fields import words_of

from ..sessions.session import Session
from .forges import Forges, check_pull_request

Exchange: TypeAlias = Callable[[Session, str, dict[str, Any]], Awaitable[CodeOperationResponse]]
"""Has the sandbox run an operation."""


class _Push(msgspec.Struct, forbid_unknown_fields=True):
    branch: str | None = None


class _CreatePr(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    body: str = ""
    base: str | None = None


async def push(
    session: Session,
    name: str,
    parameters: dict[str, Any],
    forges: Forges,
    exchange: Exchange,
) -> CodeOperationResponse:
    """Run `git_push`, or `git_create_pr`, which pushes first.

    Raises:
        BadRequest, Conflict, Forbidden: the forge, or our rules for it, refuse it.
        RequestError: as `exchange`.
    """
    pull = _given(parameters, _CreatePr) if name == "git_create_pr" else None
    asked = _given(parameters, _Push) if pull is None else _Push()
    if pull is not None:
        check_pull_request(pull.title, pull.body, pull.base)
    origin = await exchange(session, "git_origin", {})
    if not origin.success:
        return origin
    found = origin.result if isinstance(origin.result, dict) else {}
    repository = forges.repository(session, str(found.get("url", "")))
    branch = asked.branch or str(found.get("branch", ""))
    if pull is not None and pull.base == branch:
        raise Conflict(
            f"the commits are on {branch}, the branch to merge into: git_branch makes another one"
        )
    pushed = await exchange(session, "push", {"url": repository.push_url, "branch": branch})
    if not pushed.success:
        return pushed
    result = pushed.result if isinstance(pushed.result, dict) else {}
    result = {**result, "repository": repository.name, "host": repository.forge.host}
    if pull is not None:
        result |= await forges.open_pull_request(
            repository, branch, pull.base, pull.title, pull.body
        )
    return msgspec.structs.replace(pushed, result=result)


def _given(parameters: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert({k: v for k, v in parameters.items() if v is not None}, kind)
    except msgspec.ValidationError as exc:
        raise BadRequest(words_of(exc, kind)) from exc
