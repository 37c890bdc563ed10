"""Packages for one session: checks the requirements and queues the execution that installs them.

A requirement is a name with versions (PEP 508). Options, paths and addresses are refused, so that
packages come from the operator's index or wheels. User code may also run pip by itself, within the
limits of its template's network.
"""

from __future__ import annotations

import shlex

from kernelbroker.protocol.errors import BadRequest, Conflict
from kernelbroker.protocol.messages import ExecutionRequest, InstallRequest
from kernelbroker_kernel.contract import INSTALL_CODE
from packaging.requirements import InvalidRequirement, Requirement

from ..backends.base import Network
from ..kernels.requests import InternalCell
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from .executions import Executions

_ARCHIVES = (".whl", ".egg", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz")
"""Suffixes of names that pip would take for a local file."""
_SHOWN_CHARS = 100


async def install(executions: Executions, session: Session, asked: InstallRequest) -> ExecutionLog:
    """Queue the installation as an execution.

    Policy and audit log see the equivalent shell cell, `pip install NAME...`.

    Raises:
        BadRequest: a requirement is invalid or of a kind that is refused.
        Conflict: the template has neither an index nor wheels.
        Other errors: as `Executions.submit`.
    """
    requirements = [requirement(text) for text in asked.packages]
    spec = session.spec
    has_index = spec.network is not Network.NONE
    if not has_index and spec.wheels is None:
        raise Conflict(
            f"sessions of the template {spec.template} have no network, and the broker has no wheels to "
            "install from: its operator can set packages.wheels, or the template's network"
        )
    request = ExecutionRequest(
        code=shlex.join(["pip", "install", *requirements]),
        language="shell",
        timeout=asked.timeout or session.limits.max_timeout,
        confirm=asked.confirm,
    )
    what = {"requirements": requirements, "index": has_index, "index_url": spec.index_url}
    cell = InternalCell(INSTALL_CODE, {"install": what}, silent=False, packages=requirements)
    assessment = await executions.assess_for(session, request)
    return executions.submit(
        session,
        request,
        assessment=assessment,
        internal_cell=cell,
        may_shorten=asked.timeout is None,
    )


def requirement(text: str) -> str:
    """Return the requirement in its normal form. Raises BadRequest."""
    shown = ascii(text[:_SHOWN_CHARS])
    if not (text.isascii() and text.isprintable()):
        raise BadRequest(f"{shown} is not a requirement such as name or name>=1.2")
    try:
        parsed = Requirement(text)
    except InvalidRequirement:
        raise BadRequest(f"{shown} is not a requirement such as name or name>=1.2") from None
    if parsed.url is not None:
        raise BadRequest(
            f"{shown} names an address; packages come from the broker's index or wheels"
        )
    if parsed.name.lower().endswith(_ARCHIVES):
        raise BadRequest(f"{shown} names a file; give the package's name and version instead")
    return str(parsed)
