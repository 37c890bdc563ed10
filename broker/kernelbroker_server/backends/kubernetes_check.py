"""The check at startup in two real Pods: a cell runs, and what it can reach tells whether policies hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from .base import BackendUnavailable, LaunchError, Sandbox, SandboxSpec
from .kubernetes_sandbox import KubernetesSandbox
from .pod_orphans import CHECKS
from .startup_check import CheckFailed, RunCell, addresses_reached

_CHECK_S = 60.0
ENFORCED = "enforced"
_METADATA = ("169.254.169.254", 80)
"""Of most clouds: it gives credentials of the node to whoever asks."""
_KUBELET = 10250


class NetworkCheck:
    """Tries what a sandbox reaches.

    Args:
        api: the URL of the Kubernetes API, which no sandbox may reach.
    """

    def __init__(
        self,
        launch: Callable[[str, SandboxSpec], Coroutine[Any, Any, KubernetesSandbox]],
        remove: Callable[[Sandbox], Awaitable[None]],
        run_cell: RunCell,
        api: str,
    ) -> None:
        self._launch, self._remove, self._run_cell = launch, remove, run_cell
        self._api = urlsplit(api)

    async def run(self) -> str:
        """Return whether NetworkPolicies are enforced: `ENFORCED`, or which addresses were reached.

        Raises:
            BackendUnavailable: no cell runs.
        """
        launches = [asyncio.create_task(self._launch(name, SandboxSpec())) for name in CHECKS]
        try:
            await asyncio.wait(launches)
            one, two = [launch.result() for launch in launches]
            targets = {
                "other sandboxes": (two.endpoint.host, two.endpoint.port),
                "the API": (self._api.hostname or "", self._api.port or 443),
                "the cloud's metadata": _METADATA,
            }
            if (node := one.node_address) is not None:
                targets["the kubelet of their node"] = (node, _KUBELET)
            verdicts = await addresses_reached(
                self._run_cell, one, list(targets.values()), _CHECK_S
            )
        except (LaunchError, CheckFailed, OSError, TimeoutError) as error:
            raise BackendUnavailable(
                f"No sandbox can run a cell as a Pod: {error}. See docs/kubernetes.md."
            ) from error
        finally:
            await asyncio.wait(launches)
            done = [each.result() for each in launches if each.exception() is None]
            await asyncio.gather(*(self._remove(sandbox) for sandbox in done))
        reached = [name for name, is_reached in zip(targets, verdicts, strict=True) if is_reached]
        return f"not enforced: sandboxes reach {' and '.join(reached)}" if reached else ENFORCED
