"""Calls an operation by its name, with arguments that may be any JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..errors import Refused
from ..parameters import checked
from ..surrogates import well_formed
from . import archive, files, git, remote, search, snapshot

READING: dict[str, Callable[..., dict[str, Any]]] = {
    "read": files.read,
    "list": files.list_,
    "search": search.search,
    "git_status": git.git_status,
    "git_diff": git.git_diff,
    "git_log": git.git_log,
    "git_origin": remote.git_origin,
}
CHANGING: dict[str, Callable[..., dict[str, Any]]] = {
    "edit": files.edit,
    "apply_patch": git.apply_patch,
    "git_branch": git.git_branch,
    "git_commit": git.git_commit,
    "git_bundle": remote.git_bundle,
    "unpack": archive.unpack,
    "snapshot": snapshot.snapshot,
    "diff": snapshot.diff,
    "clone": remote.clone,
    "push": remote.push,
}


def call(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Call an operation that runs beside the cells, and return its response.

    ``{"success": true, "result": {...}, "execution_time_ms": int}``, or ``{"success": false, "error": str,
    "code": str, "execution_time_ms": int}``.
    """
    return timed(lambda: _called(name, parameters))


def timed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The response of some work, which returns the result or raises Refused."""
    started_at = time.monotonic()
    response: dict[str, Any]
    try:
        response = {"success": True, "result": well_formed(work())}
    except Refused as refused:
        # For the files API a missing permission is a conflict; for operations it is one of security.
        denied = isinstance(refused.__cause__, PermissionError)
        code = "security" if denied else refused.code
        response = {"success": False, "error": well_formed(refused.message), "code": code}
    except UnicodeError:
        response = {"success": False, "error": "a text has characters that no file can hold"}
        response["code"] = "bad_request"
    response["execution_time_ms"] = round((time.monotonic() - started_at) * 1000)
    return response


def _called(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    function = READING.get(name) or CHANGING.get(name)
    if function is None:
        raise Refused("bad_request", f"there is no operation {name[:100]!r}")
    return function(**checked(function, parameters))
