"""What Jupyter's REST API tells of kernels, kernelspecs and Jupyter sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from kernelbroker.protocol.errors import NotFound

from ..service.kernels import attached_id, is_started_by_jupyter, kernel_id
from ..sessions.session import Session
from .link import KernelLinks

DEFAULT_SPEC = "python3"
_DEFAULT_TEMPLATE = "default"
_SESSION = "session-"
"""Kernelspecs of sessions begin so."""
_MAX_ATTACHABLE = 100
"""Kernelspecs of sessions; the latest ones."""
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


def kernel(session: Session, links: KernelLinks, asked: str | None = None) -> dict[str, Any]:
    """Return the model of a kernel.

    Args:
        asked: the id by which it was asked for.
    """
    is_attached = asked == attached_id(session.id)
    name = f"{_SESSION}{session.id}" if is_attached else spec_of(session.options.template)
    return {
        "id": asked if is_attached else kernel_id(session.id),
        "name": name,
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
    known = list(templates)
    is_default = not spec or spec == DEFAULT_SPEC or (spec == "python" and spec not in known)
    name = _DEFAULT_TEMPLATE if is_default else str(spec)
    if name not in known:
        names = ", ".join(sorted(map(spec_of, known)))
        raise NotFound(f"there is no kernel {name!r}; there are: {names}")
    return name


def attachable(sessions: Sequence[Session]) -> dict[str, Session]:
    """Return the sessions that have a kernelspec, by its name: those that no Jupyter client has started.

    A Jupyter server with a gateway shows only the kernels that it has started itself. So its users open
    such a session by choosing its kernelspec.
    """
    others = [each for each in sessions if not is_started_by_jupyter(each)]
    return {f"{_SESSION}{each.id}": each for each in others[-_MAX_ATTACHABLE:]}


def kernelspecs(templates: Iterable[str], sessions: Sequence[Session]) -> dict[str, Any]:
    """Return the models of all kernelspecs, by name."""
    attached = attachable(sessions)
    specs = {name: _kernelspec(name, f"Session {each.id}") for name, each in attached.items()}
    for template in templates:
        suffix = "" if template == _DEFAULT_TEMPLATE else f" ({template})"
        specs[spec_of(template)] = _kernelspec(spec_of(template), f"Python 3{suffix}")
    return specs


def _kernelspec(name: str, display_name: str) -> dict[str, Any]:
    spec = {
        "argv": [],
        "env": {},
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
    }
    return {"name": name, "spec": spec, "resources": {}}


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
