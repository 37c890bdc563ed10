"""Packages for one session: what may be asked for, and the execution that installs it.

A requirement is a name with versions (PEP 508) and nothing else: no option, path or address, so that
what is installed comes from where the operator said. That holds for this call; user code may run pip,
and reaches no more by it than the network of its template lets it.
"""

from __future__ import annotations

import shlex

from kernelbroker.protocol.errors import BadRequest, Conflict
from kernelbroker.protocol.messages import ExecutionRequest, InstallRequest
from kernelbroker_kernel.contract import INSTALL_CODE
from packaging.requirements import InvalidRequirement, Requirement

from ..backends.base import Network
from ..kernels.requests import Errand
from .execution import Execution
from .session import Session

_ARCHIVES = (".whl", ".egg", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz")
"""How files end that pip would install if one of that name were there."""
_SHOWN_CHARS = 100


async def install(session: Session, asked: InstallRequest) -> Execution:
    """Queue the installation, an execution like any other.

    To the policy and the audit log it is the shell cell that would do the same, `pip install NAME...`.

    Raises:
        BadRequest: something is no requirement, or of a kind that is refused.
        Conflict: there is nothing to install from.
        what `Session.submit` raises.
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
    errand = Errand(INSTALL_CODE, {"install": what}, silent=False, packages=requirements)
    return session.submit(request, assessment=await session.judge(request), errand=errand)


def requirement(text: str) -> str:
    """The requirement as pip is given it, in its normal form. Raises BadRequest."""
    shown = ascii(text[:_SHOWN_CHARS])
    if not (text.isascii() and text.isprintable()):
        raise BadRequest(f"{shown} is no requirement such as name or name>=1.2")
    try:
        parsed = Requirement(text)
    except InvalidRequirement:
        raise BadRequest(f"{shown} is no requirement such as name or name>=1.2") from None
    if parsed.url is not None:
        raise BadRequest(
            f"{shown} names an address; packages come from the broker's index or wheels"
        )
    if parsed.name.lower().endswith(_ARCHIVES):
        raise BadRequest(f"{shown} names a file; say the package's name and version instead")
    return str(parsed)
