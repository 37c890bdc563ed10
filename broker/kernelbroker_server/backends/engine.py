"""The container engine, Docker or Podman: the few calls that the broker makes, and its events.

docker-py blocks, so every call runs in a thread of this module's own. Its errors end here.
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

log = logging.getLogger(__name__)

_THREADS = 8
_TIMEOUT_S = 60
_RECONNECT_S = 1.0
_STOP_TIMEOUT_S = 2.0

T = TypeVar("T")
Event = Mapping[str, Any]


class EngineError(Exception):
    """The engine refused, or could not be reached; the message is its own."""


class Missing(EngineError):
    """There is no such container or image."""


class Engine:
    """A connection to an engine. `connect` comes first, `close` last; all else raises EngineError.

    Args:
        host: where it listens, as a docker client writes it: `unix:///run/podman/podman.sock`; by
            default what DOCKER_HOST says, else Docker's own socket.
    """

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine")
        self._api: Any = None
        self._events: _Events | None = None

    async def connect(self) -> Mapping[str, Any]:
        """What the engine tells of itself (`GET /info`)."""

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
        """Have `on_event` called, in the event loop, for each event of containers with this label.

        `on_gap` is called each time the events begin, since some may have been missed before.
        """
        self._events = _Events(self._api, label, on_event, on_gap)

    async def require_image(self, image: str) -> None:
        """Raises Missing if the engine does not have it."""
        await self._call(lambda: self._api.inspect_image(image))

    async def create(self, name: str, options: Mapping[str, Any]) -> None:
        await self._call(lambda: self._api.create_container_from_config(options, name))

    async def start(self, name: str) -> None:
        await self._call(lambda: self._api.start(name))

    async def state(self, name: str) -> Mapping[str, Any]:
        """`State` of `GET /containers/{name}/json`."""
        container = await self._call(lambda: self._api.inspect_container(name))
        state: Mapping[str, Any] = container["State"]
        return state

    async def memory(self, name: str) -> Mapping[str, Any]:
        """`memory_stats` of `GET /containers/{name}/stats`: `usage` and `stats`, empty if it has ended."""
        stats = await self._call(lambda: self._api.stats(name, stream=False, one_shot=True))
        memory: Mapping[str, Any] = stats.get("memory_stats", {})
        return memory

    async def output_tail(self, name: str) -> str:
        """The last lines of what the container wrote."""
        output: bytes = await self._call(lambda: self._api.logs(name, tail=20))
        return output.decode(errors="replace").strip()

    async def remove(self, name: str) -> None:
        """End and remove a container, which may be gone already."""
        with contextlib.suppress(Missing):
            await self._call(lambda: self._api.remove_container(name, force=True, v=True))

    async def has_network(self, name: str) -> bool:
        try:
            await self._call(lambda: self._api.inspect_network(name))
        except Missing:
            return False
        return True

    async def with_label(self, label: str) -> list[Mapping[str, Any]]:
        """The containers with this `name=value`, in any state."""
        found: list[Mapping[str, Any]] = await self._call(
            lambda: self._api.containers(all=True, filters={"label": label})
        )
        return found

    async def create_network(self, name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns what `GET /networks/{name}` tells of it."""

        def create() -> Mapping[str, Any]:
            self._api.create_network(name, check_duplicate=True, **options)
            network: Mapping[str, Any] = self._api.inspect_network(name)
            return network

        return await self._call(create)

    async def remove_network(self, name: str) -> None:
        """Remove a network, which may be gone already."""
        with contextlib.suppress(Missing):
            await self._call(lambda: self._api.remove_network(name))

    async def networks_with_label(self, label: str) -> list[Mapping[str, Any]]:
        """The networks with this `name=value`."""
        found: list[Mapping[str, Any]] = await self._call(
            lambda: self._api.networks(filters={"label": label})
        )
        return found

    async def address(self, name: str, network: str) -> str:
        """The container's address in a network; empty if it has none, having ended."""
        container = await self._call(lambda: self._api.inspect_container(name))
        networks: Mapping[str, Any] = container["NetworkSettings"]["Networks"] or {}
        return str(networks.get(network, {}).get("IPAddress", ""))

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _translated, call)


class _Events:
    """One thread that reads the engine's events for all sandboxes, and begins anew when they end."""

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
        # It waits without a limit; as a daemon it never keeps the broker from ending.
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
            if self._stopping.is_set():  # `stop` may have come too early to see the stream
                return
            self._tell(self._on_gap)
            for event in self._stream:
                self._tell(self._on_event, event)
        finally:
            with contextlib.suppress(Exception):
                self._stream.close()
            self._stream = None

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(callback, *args)


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except NotFound as error:
        raise Missing(str(error.explanation or error)) from error
    except APIError as error:
        raise EngineError(str(error.explanation or error)) from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise EngineError(str(error)) from error
