"""One watch of all Pods of a broker, opened again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from .kubernetes_api import Gone, KubernetesApi, KubernetesError
from .pod_status import Pod

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 10.0


class PodWatch:
    """Tells what happens to Pods, from `start` to `stop`.

    Args:
        labels: those of the Pods.
        on_change: gets each change, as `KubernetesApi.watch` has it.
        on_list: gets all Pods when changes may have been missed.

    Attributes:
        is_away: the API does not answer.
    """

    def __init__(
        self,
        api: KubernetesApi,
        labels: str,
        on_change: Callable[[str, Pod], None],
        on_list: Callable[[Sequence[Pod]], None],
    ) -> None:
        self.is_away = False
        self._api, self._labels = api, labels
        self._on_change, self._on_list = on_change, on_list
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises KubernetesError."""
        _, version = await self._api.list("pods", self._labels)
        self._task = asyncio.create_task(self._run(version), name="watch of Pods")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, version: str | None) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if version is None:
                    pods, version = await self._api.list("pods", self._labels)
                    self._on_list(pods)
                if self.is_away:
                    log.warning("The Kubernetes API answers again")
                self.is_away, pause = False, _FIRST_PAUSE_S
                async with contextlib.aclosing(
                    self._api.watch("pods", self._labels, version)
                ) as changes:
                    async for change, pod in changes:
                        version = str(pod["metadata"]["resourceVersion"])
                        if change != "BOOKMARK":
                            self._on_change(change, pod)
            except Gone:
                version = None
            except KubernetesError as error:
                if not self.is_away:
                    log.warning("The watch of Pods ended, and is opened again: %s", error)
                self.is_away, version = True, None
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_S)
            except Exception:
                log.exception("A change of a Pod could not be handled")
                version = None
                await asyncio.sleep(pause)
