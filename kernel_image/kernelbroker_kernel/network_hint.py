"""Tells, under the traceback, that a sandbox has no network: the messages of the system do not say it."""

from __future__ import annotations

import errno
import os
import socket

NOTE = (
    "Note: this sandbox has no network. Files can be uploaded to it, and `session.install` installs "
    "packages from the broker's wheels, if its operator has set some."
)
_HAS_NONE = "PIP_NO_INDEX" in os.environ
"""The broker sets it for sandboxes without a network. Code may clear its environment later."""
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_CHAIN = 20
"""Errors of a chain that are looked at."""


def explain(error: BaseException) -> None:
    """Add the note to an error that has its cause in the network."""
    if not _HAS_NONE or NOTE in getattr(error, "__notes__", ()):
        return
    each: BaseException | None = error
    for _ in range(_CHAIN):
        if each is None:
            return
        if isinstance(each, socket.gaierror) or (
            isinstance(each, OSError) and each.errno in _UNREACHABLE
        ):
            error.add_note(NOTE)
            return
        each = each.__cause__ or each.__context__
