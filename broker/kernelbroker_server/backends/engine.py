"""The container engine, Docker or Podman: the calls that the broker makes, and the engine's events.

docker-py blocks, so every call runs in a thread pool of this module. Its errors are translated here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from .base import CPU_PERIOD_US, LaunchError, Limits

log = logging.getLogger(__name__)

_THREADS = 8
_TIMEOUT_S = 60
_RECONNECT_S = 1.0
_STOP_TIMEOUT_S = 2.0
_REMOVE_PAUSES_S = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts to remove a container. A busy engine takes seconds for a removal, and
refuses a second one meanwhile, such as that of `close` after a `kill` whose caller was cancelled."""

T = TypeVar("T")
Event = Mapping[str, Any]


class EngineError(Exception):
    """The engine refused a call, or could not be reached. The message is the engine's."""


class Missing(EngineError):
    """The container or image does not exist."""


class Refused(EngineError):
    """The engine answered with an error."""


class Engine:
    """A connection to an engine. Call `connect` first and `close` last. All other calls raise EngineError.

    Args:
        host: the address of the engine, as docker clients write it: `unix:///run/podman/podman.sock`. By
            default DOCKER_HOST, else Docker's own socket.
    """

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine")
        self._api: Any = None
        self._events: _Events | None = None

    async def connect(self) -> Mapping[str, Any]:
        """Return the engine's description of itself (`GET /info`)."""

        def connect() -> Mapping[str, Any]:
            where = {"base_url": self._host} if self._host else docker.utils.kwargs_from_env()
            self._api = docker.APIClient(version="auto", timeout=_TIMEOUT_S, **where)
            info: Mapping[str, Any] = self._api.info()
            return info

        return await self._call(connect)

    async def close(self) -> None:
        if self._events is not None:
            await self._call(self._events.stop)
        if self._api is not None:
            await self._call(self._api.close)
        self._threads.shutdown(wait=False)

    def listen(
        self, label: str, on_event: Callable[[Event], None], on_gap: Callable[[], None]
    ) -> None:
        """Call `on_event`, in the event loop, for each event of containers with this label.

        `on_gap` is called each time the stream of events begins, since events may have been missed before.
        """
        self._events = _Events(self._api, label, on_event, on_gap)

    async def require_image(self, image: str) -> None:
        """Raise Missing if the engine does not have the image."""
        await self.image_id(image)

    async def image_id(self, image: str) -> str:
        """Return the id of what the name means now. Raises Missing."""
        found: Mapping[str, Any] = await self._call(lambda: self._api.inspect_image(image))
        return str(found["Id"])

    async def image_labels(self, image: str) -> Mapping[str, str]:
        """Return the labels of an image. Raises Missing."""
        found: Mapping[str, Any] = await self._call(lambda: self._api.inspect_image(image))
        return (found.get("Config") or {}).get("Labels") or {}

    async def create(self, name: str, options: Mapping[str, Any]) -> None:
        await self._call(lambda: self._api.create_container_from_config(options, name))

    async def start(self, name: str) -> None:
        await self._call(lambda: self._api.start(name))

    async def inspect(self, name: str) -> Mapping[str, Any]:
        """Return `GET /containers/{name}/json`."""
        container: Mapping[str, Any] = await self._call(lambda: self._api.inspect_container(name))
        return container

    async def state(self, name: str) -> Mapping[str, Any]:
        """Return `State` of `GET /containers/{name}/json`."""
        state: Mapping[str, Any] = (await self.inspect(name))["State"]
        return state

    async def stats(self, name: str) -> Mapping[str, Any]:
        """Return `GET /containers/{name}/stats`; mostly empty if the container has ended."""
        stats: Mapping[str, Any] = await self._call(
            lambda: self._api.stats(name, stream=False, one_shot=True)
        )
        return stats

    async def change_limits(self, name: str, limits: Limits) -> None:
        """Change a container's limits of memory, with swap, and of processors. Raises LaunchError."""
        asked = {
            "mem_limit": limits.memory,
            "memswap_limit": limits.memory,
            "cpu_period": CPU_PERIOD_US,
            "cpu_quota": limits.cpu_quota,
        }
        try:
            await self._call(lambda: self._api.update_container(name, **asked))
        except EngineError as error:
            raise LaunchError(f"The container cannot be limited: {error}") from error

    async def output_tail(self, name: str) -> str:
        """Return the last lines of the container's output."""
        output: bytes = await self._call(lambda: self._api.logs(name, tail=20))
        return output.decode(errors="replace").strip()

    async def remove(self, name: str) -> None:
        """End and remove a container. It may have been removed already."""
        for pause in (*_REMOVE_PAUSES_S, None):
            try:
                with contextlib.suppress(Missing):
                    await self._call(lambda: self._api.remove_container(name, force=True, v=True))
                return
            except Refused as error:  # Podman refuses while it cleans up after the container's end
                if pause is None:
                    raise
                log.debug("Container %s is not yet removed: %s", name, error)
                await asyncio.sleep(pause)

    async def network(self, name: str) -> Mapping[str, Any] | None:
        """Return `GET /networks/{name}`; None if there is no such network."""
        try:
            network: Mapping[str, Any] = await self._call(lambda: self._api.inspect_network(name))
        except Missing:
            return None
        return network

    async def with_label(self, label: str) -> list[Mapping[str, Any]]:
        """Return the containers with this `name=value`, in any state."""
        found: list[Mapping[str, Any]] = await self._call(
            lambda: self._api.containers(all=True, filters={"label": label})
        )
        return found

    async def create_network(self, name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create a network; returns its description (`GET /networks/{name}`)."""

        def create() -> Mapping[str, Any]:
            self._api.create_network(name, check_duplicate=True, **options)
            network: Mapping[str, Any] = self._api.inspect_network(name)
            return network

        return await self._call(create)

    async def remove_network(self, name: str) -> None:
        """Remove a network. It may have been removed already."""
        with contextlib.suppress(Missing):
            await self._call(lambda: self._api.remove_network(name))

    async def networks_with_label(self, label: str) -> list[Mapping[str, Any]]:
        """Return the networks with this `name=value`."""
        found: list[Mapping[str, Any]] = await self._call(
            lambda: self._api.networks(filters={"label": label})
        )
        return found

    async def address(self, name: str, network: str) -> str:
        """Return the container's address in a network; empty if the container has ended."""
        return address_in(await self.inspect(name), network)

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _translated, call)


class _Events:
    """A thread that reads the engine's events for all sandboxes, and reconnects when they end."""

    def __init__(
        self,
        api: Any,
        label: str,
        on_event: Callable[[Event], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._api = api
        self._filters = {"type": "container", "label": label}
        self._on_event = on_event
        self._on_gap = on_gap
        self._loop = asyncio.get_running_loop()
        self._stream: Any = None
        self._stopping = threading.Event()
        # Its reads have no timeout; a daemon thread does not keep the broker from ending.
        self._thread = threading.Thread(target=self._run, name="engine events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if (stream := self._stream) is not None:
            stream.close()
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                _translated(self._read)
            except EngineError as error:
                log.warning("The container engine's events cannot be read: %s", error)
            except Exception:
                if not self._stopping.is_set():  # closing breaks a read at any point
                    log.exception("The container engine's events cannot be read")
            self._stopping.wait(_RECONNECT_S)

    def _read(self) -> None:
        self._stream = self._api.events(decode=True, filters=self._filters)
        try:
            if self._stopping.is_set():  # `stop` may have been called before the stream existed
                return
            self._tell(self._on_gap)
            for event in self._stream:
                self._tell(self._on_event, event)
        finally:
            with contextlib.suppress(Exception):
                self._stream.close()
            self._stream = None

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)


def address_in(container: Mapping[str, Any], network: str) -> str:
    """Return the address of an inspected container in a network; empty if it has none."""
    networks: Mapping[str, Any] = container["NetworkSettings"]["Networks"] or {}
    return str(networks.get(network, {}).get("IPAddress", ""))


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except NotFound as error:
        raise Missing(str(error.explanation or error)) from error
    except APIError as error:
        raise Refused(str(error.explanation or error)) from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise EngineError(str(error)) from error
