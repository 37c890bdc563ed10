"""The real broker with scripted kernels, behind a proxy that can break connections."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from kernelbroker.protocol import events

from tests.support.backend import fake_backend, spotless_backend
from tests.support.gateway import Cell, CellFailed, Script
from tests.support.http import TOKEN, Api, serving
from tests.support.proxy import Proxy
from tests.support.world import world


class ProxiedBroker(Proxy):
    """The broker as its clients see it.

    Attributes:
        cells: what cells do, by their code; others succeed without output.
        api: the broker itself, without the proxy.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api.port)
        self.api = api
        self.cells = api.world.backend.scripts

    async def sessions(self) -> list[str]:
        """The ids of the open sessions."""
        answer = await self.api.ask("GET", "/api/v1/sessions")
        return [session["session_id"] for session in answer.json["sessions"]]

    async def end(self, session_id: str) -> None:
        """Close a session, as another client could."""
        answer = await self.api.ask("DELETE", f"/api/v1/sessions/{session_id}")
        assert answer.status == 204

    async def no_sessions(self) -> bool:
        return not await self.sessions()

    def replace_result(self, **fields: Any) -> None:
        """Replace these fields of all results on their way to the client."""

        def rewrite(payload: bytes) -> list[bytes]:
            message = json.loads(payload)
            if message["type"] == "result":
                message |= msgspec.to_builtins(fields)
            return [json.dumps(message).encode()]

        self.rewrite = rewrite


@asynccontextmanager
async def proxied_broker(make_backend: Any = spotless_backend) -> AsyncIterator[ProxiedBroker]:
    async with make_backend() as backend, world(backend) as w, serving(w) as api:
        broker = ProxiedBroker(api)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


class Scripts:
    """Scripts of cells."""

    token = TOKEN

    @staticmethod
    def printing(*texts: str) -> Script:
        """A cell that prints these texts."""

        async def script(cell: Cell) -> None:
            for text in texts:
                cell.stdout(text)

        return script

    @staticmethod
    def emitting(*outputs: events.Event) -> Script:
        """A cell whose output becomes these events."""

        async def script(cell: Cell) -> None:
            for event in outputs:
                _emit(cell, event)

        return script

    @staticmethod
    async def forever(cell: Cell) -> None:
        """A cell that runs until it is interrupted."""
        await cell.until_interrupted()

    @staticmethod
    async def failing(cell: Cell) -> None:
        """A cell that raises."""
        raise CellFailed("ValueError", "no")

    @staticmethod
    async def asking(cell: Cell) -> None:
        """A cell that asks for a name and prints the answer."""
        cell.send("stdin", "input_request", {"prompt": "name? ", "password": False})
        cell.stdout(await cell.answers.get())


def _emit(cell: Cell, event: events.Event) -> None:
    match event:
        case events.Stdout(content=text):
            cell.stdout(text)
        case events.Stderr(content=text):
            cell.send("iopub", "stream", {"name": "stderr", "text": text})
        case events.Image(mime=mime, content=content):
            cell.display({mime: content})
        case events.Display(data=data):
            cell.display(data)
        case events.Clear(wait=wait):
            cell.send("iopub", "clear_output", {"wait": wait})
        case _:
            raise ValueError(f"no kernel sends {event}")


@pytest.fixture
def scripts() -> type[Scripts]:
    return Scripts


@pytest.fixture
async def broker() -> AsyncIterator[ProxiedBroker]:
    async with asyncio.timeout(120), proxied_broker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Tests find no broker but the one of their fixture."""
    for name in ("KERNELBROKER_URL", "KERNELBROKER_TOKEN", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", str(tmp_path / "run" / "broker.json"))


@pytest.fixture
def connected(broker, monkeypatch: pytest.MonkeyPatch) -> ProxiedBroker:
    """The client finds this broker, and reconnects without a delay."""
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", TOKEN)
    monkeypatch.setattr("kernelbroker.websocket.RETRY_DELAYS", (0.0,) * 3)
    monkeypatch.setattr("kernelbroker.websocket.FURTHER_DELAYS", ())
    return broker


@pytest.fixture
def second_broker() -> Any:
    """Makes another broker, which does not know the sessions of the first one."""
    return lambda: proxied_broker(fake_backend)


@pytest.fixture
def broker_in_thread():
    """The broker in an event loop of another thread, and a function that runs coroutines there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    stopped = asyncio.Event()
    started: Any = loop.create_future()

    async def serve() -> None:
        async with proxied_broker() as broker:
            started.set_result(broker)
            await stopped.wait()

    async def wait_started() -> ProxiedBroker:
        return await started

    async def stop() -> None:
        stopped.set()
        await serving_task

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(serve())

    serving_task = call(start())
    yield call(wait_started()), call
    call(stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
