"""Checks of the installation and of a broker that runs: their versions, and its health."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ..advice import as_root, install
from ..backends.base import Isolation
from ..paths import CHECKOUT
from .findings import Finding, error, ok
from .patient import Patient

_DISTRIBUTIONS = ("kernelbroker", "kernelbroker-kernel")
"""What the broker needs in its own version."""


def versions(patient: Patient) -> list[Finding]:
    """Whether SDK, broker, the sandboxes' programs and the broker that runs are of one version."""
    own = version("kernelbroker-server")
    found = []
    for name in _DISTRIBUTIONS:
        try:
            other = version(name)
        except PackageNotFoundError:
            other = "none"
        if other != own:
            message = f"{name} is of version {other}, and kernelbroker-server of {own}"
            remedy = _one_version(name, own)
            found.append(error("versions", message, remedy))
    running = patient.running
    if running is not None and (other := running.health["version"]) != own:
        message = (
            f"the broker at {running.url} is of version {other}, and what is installed of {own}"
        )
        remedy = "Restart it; if it belongs to another installation, use the doctor of that one"
        found.append(error("versions", message, remedy))
    return found or [ok("versions", own)]


def _one_version(name: str, version: str) -> str:
    """How to have a distribution in the version of the broker."""
    own = {"kernelbroker": ".", "kernelbroker-kernel": "kernel_image"}[name]
    if (CHECKOUT / own / "pyproject.toml").exists():
        return f"Install it from the same checkout: {install('-e', CHECKOUT / own)}"
    return f"Install the wheel of version {version} that came with the broker's"


def health(patient: Patient) -> list[Finding]:
    """What a broker that runs says of itself."""
    running = patient.running
    if running is None:
        return [ok("broker", "none runs")]
    found = [
        error("broker", f"the one at {running.url} reports: {reason}", _advice(str(reason)))
        for reason in running.health.get("reasons", ())
    ]
    if running.health.get("isolation") == Isolation.PROCESS:
        message = f"the one at {running.url} runs code without isolation"
        remedy = (
            f"Install bubblewrap: {as_root('apt-get', 'install', 'bubblewrap')}. Then set "
            "local.require_isolation = true, and restart the broker"
        )
        found.append(error("broker", message, remedy))
    return found or [ok("broker", f"the one at {running.url} is healthy")]


def _advice(reason: str) -> str:
    if reason.startswith("template"):
        return "Correct that (see the other checks); the broker tries again by itself"
    if "kept aside" in reason:
        return "With the newer version, rename it back; else delete it. Then restart the broker"
    return "Look into the broker's log"
