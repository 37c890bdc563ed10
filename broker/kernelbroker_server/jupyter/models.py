"""What Jupyter's REST API tells of kernels, kernelspecs and Jupyter sessions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from kernelbroker.protocol.errors import NotFound

from ..service.kernels import kernel_id
from ..sessions.session import Session
from .link import KernelLinks

DEFAULT_SPEC = "python3"
_DEFAULT_TEMPLATE = "default"
METADATA_KEY = "jupyter"
"""In a session's metadata: the Jupyter sessions (notebooks, consoles) that use it as their kernel."""


class NotebookSession(msgspec.Struct, kw_only=True):
    """A Jupyter session: a notebook or console, and its kernel."""

    id: str
    path: str
    name: str = ""
    type: str = "notebook"


def utc_text(timestamp: float) -> str:
    """Return a time as Jupyter's servers write it. Some clients accept no other form."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def kernel(session: Session, links: KernelLinks) -> dict[str, Any]:
    """Return the model of a kernel."""
    return {
        "id": kernel_id(session.id),
        "name": spec_of(session.options.template),
        "last_activity": utc_text(session.active_at),
        "execution_state": "busy" if session.state == "busy" else "idle",
        "connections": links.connections(session),
        "session_id": session.id,
    }


def spec_of(template: str) -> str:
    """Return the name of a template's kernelspec."""
    return DEFAULT_SPEC if template == _DEFAULT_TEMPLATE else template


def template_of(spec: str | None, templates: Iterable[str]) -> str:
    """Return the template of a kernelspec; of the default one if None. Raises NotFound."""
    name = _DEFAULT_TEMPLATE if spec in (None, "", DEFAULT_SPEC) else str(spec)
    known = list(templates)
    if name not in known:
        names = ", ".join(sorted(map(spec_of, known)))
        raise NotFound(f"there is no kernel {name!r}; there are: {names}")
    return name


def kernelspec(template: str) -> dict[str, Any]:
    """Return the model of a template's kernelspec."""
    suffix = "" if template == _DEFAULT_TEMPLATE else f" ({template})"
    spec = {
        "argv": [],
        "env": {},
        "display_name": f"Python 3{suffix}",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
    }
    return {"name": spec_of(template), "spec": spec, "resources": {}}


def notebook_session(
    found: NotebookSession, session: Session, links: KernelLinks
) -> dict[str, Any]:
    """Return the model of a Jupyter session."""
    model = msgspec.to_builtins(found)
    return {
        **model,
        "kernel": kernel(session, links),
        "notebook": {"path": found.path, "name": found.name},
    }


def notebook_sessions(session: Session) -> list[NotebookSession]:
    """Return the Jupyter sessions of a session. Its metadata is the client's own and can be anything."""
    try:
        return msgspec.convert(
            session.options.metadata.get(METADATA_KEY, []), list[NotebookSession]
        )
    except msgspec.ValidationError:
        return []
