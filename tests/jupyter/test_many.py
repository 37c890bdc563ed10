"""Kernels beside each other, clients that cannot keep up, and kernels that sleep or get another broker."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import kernelbroker
import pytest
from websockets.exceptions import ConnectionClosed

from tests.e2e.support import BrokerProcess, backend_settings, call, until, whole_system
from tests.e2e.test_adoption import end_all, free_port
from tests.jupyter.support import KernelClient, connected, kernel_of, kinds, reply_of, text_of
from tests.support.requires import requires

pytestmark = whole_system


async def test_kernels_run_at_the_same_time(broker: BrokerProcess) -> None:
    """Cells of several kernels wait for their clients at once; each client gets only its own messages."""
    async with AsyncExitStack() as stack:
        kernels = []
        for number in range(4):
            status, made = await call(broker, "POST", "/jupyter/api/kernels", {})
            assert status == 201
            path = f"/jupyter/api/kernels/{made['id']}"
            stack.push_async_callback(call, broker, "DELETE", path)
            client = connected(broker, made["id"], legacy=bool(number % 2))
            kernels.append(await stack.enter_async_context(client))
        cells = [
            await kernel.execute(f"mine = {number}\nprint(input('?'), mine)", allow_stdin=True)
            for number, kernel in enumerate(kernels)
        ]
        for kernel, cell in zip(kernels, cells, strict=True):
            await kernel.until("input_request", cell)
        for number, kernel in reversed([*enumerate(kernels)]):
            await kernel.send("input_reply", {"value": f"hello {number}"}, channel="stdin")
        for number, (kernel, cell) in enumerate(zip(kernels, cells, strict=True)):
            assert text_of(await kernel.done(cell)).endswith(f"hello {number} {number}\n")
            parents = {each["parent_header"].get("msg_id") for each in kernel.messages}
            assert parents <= {cell, None}


async def test_cells_after_an_interrupt(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """A cell that is sent as soon as the interrupted one has its reply runs, each time."""
    path = f"/jupyter/api/kernels/{await kernel_of(broker, session.session_id)}/interrupt"
    for number in range(20):
        endless = await kernel.execute("while True: pass")
        await kernel.until("execute_input", endless)
        assert (await call(broker, "POST", path))[0] == 204
        reply = await kernel.until("execute_reply", endless)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        answers = await kernel.run(f"print({number})")
        assert (reply_of(answers)["status"], text_of(answers)) == ("ok", f"{number}\n")


async def test_a_slow_reader(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """A client that does not read is disconnected when too much waits; nobody else notices."""
    await kernel.ask("kernel_info_request", {})
    code = "from IPython.display import display\nfor _ in range(100):\n"
    code += "    display({'text/plain': 'x' * 1_000_000}, raw=True)"
    async with connected(broker, await kernel_of(broker, session.session_id)) as fast:
        await fast.ask("kernel_info_request", {})

        async def read() -> list[str]:
            return kinds(await fast.done(await fast.execute(code)))

        assert (await read()).count("display_data") == 100
        assert (await session.run("6 * 7")).text == "42"
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await kernel.next()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, "slowly" in closed.value.rcvd.reason) == (1008, True)
        assert text_of(await fast.run("print('on')")) == "on\n"


async def asleep(broker: BrokerProcess, session_id: str) -> bool:
    (info,) = [
        each
        for each in (await call(broker, "GET", "/api/v1/sessions"))[1]["sessions"]
        if each["session_id"] == session_id
    ]
    return bool(info["state"] == "asleep")


@pytest.mark.parametrize("request_of", ["execute_request", "complete_request"])
async def test_a_sleeping_session_wakes(
    broker: BrokerProcess, session: kernelbroker.Session, request_of: str
) -> None:
    """A kernel that sleeps is listed, and wakes by a request, over an old connection or a new one."""

    def pause() -> None:
        request = Request(
            f"{broker.url}/e2b/sandboxes/{session.session_id}/pause",
            method="POST",
            headers={"X-API-Key": broker.token},
        )
        with urlopen(request) as answer:
            assert answer.status == 204

    kernel_id = await kernel_of(broker, session.session_id)
    async with connected(broker, kernel_id) as old:
        await old.run("some_name = 41")
        for connect_again in (False, True):
            await asyncio.to_thread(pause)
            listed = (await call(broker, "GET", "/jupyter/api/kernels"))[1]
            assert kernel_id in [each["id"] for each in listed]
            assert await asleep(broker, session.session_id), "to look does not wake it"
            async with AsyncExitStack() as stack:
                kernel = old
                if connect_again:
                    kernel = await stack.enter_async_context(connected(broker, kernel_id))
                if request_of == "execute_request":
                    assert text_of(await kernel.run("print(some_name + 1)")) == "42\n"
                else:
                    asked = {"code": "some_n", "cursor_pos": 6}
                    matches = (await kernel.ask("complete_request", asked))["matches"]
                    assert matches == ["some_name"]
                assert not await asleep(broker, session.session_id)
        states = [each["content"].get("execution_state") for each in old.messages]
        assert "restarting" not in states and "dead" not in states


@pytest.fixture(params=["local", pytest.param("docker", marks=requires("docker"))])
def killed(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker that is killed, and its successor."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TOKEN="the token of this test",
            PORT=free_port(),
            **backend_settings(request.param),
        )
        try:
            with broker.running():
                yield broker
        finally:
            end_all(broker, request.param)


async def test_kernels_outlive_a_killed_broker(killed: BrokerProcess) -> None:
    """A client that connects to the next broker finds its kernel, its notebook, its variables and the cell
    that ran, whose rest it sees."""
    asked = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": "python3"}}
    made = (await call(killed, "POST", "/jupyter/api/sessions", asked))[1]
    kernel_id = made["kernel"]["id"]
    code = "import os, time\nprint('begun', flush=True)\n"
    code += "while not os.path.exists('go'): time.sleep(0.02)\nprint('ended', amount)"
    async with connected(killed, kernel_id, session="notebook-1") as kernel:
        await kernel.run("amount = 20")
        cell = await kernel.execute(code)
        await kernel.until("stream", cell)
        killed.kill()
        with pytest.raises(ConnectionClosed):
            while True:
                await kernel.next()
    await asyncio.to_thread(killed.start)
    (found,) = (await call(killed, "GET", "/jupyter/api/sessions"))[1]
    assert (found["id"], found["kernel"]["id"]) == (made["id"], kernel_id)
    async with connected(killed, kernel_id, session="notebook-1") as kernel:
        await kernel.ask("kernel_info_request", {}, channel="control")
        after = await kernel.execute("print(amount + 1)")
        assert (await call(killed, "PUT", f"/api/v1/sessions/{kernel_id}/files/go"))[0] == 204
        answers = await kernel.done(cell)
        assert (text_of(answers), reply_of(answers)["status"]) == ("ended 20\n", "ok")
        assert text_of(await kernel.done(after)) == "21\n"

    async def ended() -> bool:
        listed = (await call(killed, "GET", f"/api/v1/sessions/{kernel_id}/executions"))[1]
        return [each["success"] for each in listed["executions"]] == [True] * 3

    await until(ended)
