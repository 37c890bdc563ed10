"""Reports file operations as telemetry events, for the audit log and the metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kernelbroker.protocol.errors import RequestError

from ..sessions.session import Session
from ..telemetry.events import FileOperation, FileOperationEnded, SessionEmitter

_MAX_PATH_CHARS = 4096
"""Of a path in an event; a longer one is cut."""


@dataclass(slots=True)
class Progress:
    """How many bytes an operation has moved so far; kept up to date by the operation."""

    size: int = 0


@contextlib.contextmanager
def file_operation(
    session: Session, operation: FileOperation, path: str, target: str = ""
) -> Iterator[Progress]:
    """Emit one event when the block ends, with its outcome.

    The outcome is `success`, the code of a RequestError, or `aborted` for everything else: the client
    disconnected, or the sandbox broke off.
    """
    with report(session.emit, operation, path, target) as progress:
        yield progress


@contextlib.contextmanager
def report(
    emit: SessionEmitter,
    operation: FileOperation,
    path: str,
    target: str = "",
    *,
    workspace: str = "",
    unless: type[RequestError] | None = None,
) -> Iterator[Progress]:
    """As `file_operation`, for a workspace that no session has.

    Args:
        workspace: its name.
        unless: an error after which nothing is emitted, since the call is repeated.
    """
    progress, started_at, outcome = Progress(), time.monotonic(), "success"
    try:
        yield progress
    except RequestError as exc:
        outcome = exc.code
        if unless is not None and isinstance(exc, unless):
            outcome = ""
        raise
    except BaseException:
        outcome = "aborted"
        raise
    finally:
        if outcome:
            seconds = time.monotonic() - started_at
            names = (path[:_MAX_PATH_CHARS], target[:_MAX_PATH_CHARS])
            size = progress.size
            emit(FileOperationEnded, operation, *names, outcome, size, seconds, workspace)
