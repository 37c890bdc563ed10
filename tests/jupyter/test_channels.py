"""The `channels` WebSocket of a session's kernel."""

from __future__ import annotations

import asyncio
import json

import kernelbroker
import pytest
from websockets.exceptions import ConnectionClosed

from tests.e2e.support import BrokerProcess, call, whole_system
from tests.jupyter.support import KernelClient, connected, kernel_of, kinds, reply_of, text_of

pytestmark = whole_system

ECHO = """
from comm import get_comm_manager

def opened(comm, message):
    def answer(message):
        buffers = [b"\\x00\\xff" + bytes(each) for each in message["buffers"]]
        comm.send({"got": message["content"]["data"]}, buffers=buffers)
    comm.on_msg(answer)

get_comm_manager().register_target("echo", opened)
"""


async def test_a_cell_is_seen_as_from_a_stock_kernel(kernel: KernelClient) -> None:
    """A cell brings exactly the messages of a stock kernel, and its reply has nothing of ours."""
    answers = await kernel.run("print('hello')\n6 * 7", user_expressions={"twice": "6 * 2"})
    assert sorted(kinds(answers)) == sorted(
        ["busy", "execute_input", "stream", "execute_result", "execute_reply", "idle"]
    )
    (reply,) = [each for each in answers if each["header"]["msg_type"] == "execute_reply"]
    assert reply["content"]["user_expressions"]["twice"]["data"] == {"text/plain": "12"}
    assert reply["metadata"].keys() == {"started", "status", "engine", "dependencies_met"}


async def test_both_see_the_same_variables_and_history(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """A person sees an agent's variables, and the agent's history has the person's cell."""
    await session.run("amount = 20")
    answers = await kernel.run("print(amount)\nanswer = amount + 22\nanswer")
    assert text_of(answers) == "20\n"
    assert (await session.run("answer")).text == "42"
    _, second, _ = await session.executions()
    status, found = await call(broker, "GET", f"/api/v1/executions/{second.execution_id}")
    assert (status, found["code"]) == (200, "print(amount)\nanswer = amount + 22\nanswer")
    assert found["client"] == "jupyter"
    async with kernelbroker.connect(broker.url, broker.token) as client:
        result = await client.result(session.session_id, second.execution_id)
    assert result.success and result.stdout == "20\n" and result.text == "20\n42"
    assert [each.name for each in result.variables] == ["amount", "answer"]


async def test_clients_see_the_cells_of_others(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """Every client sees what is published for the cells of others, and no replies but its own."""
    await kernel.ask("kernel_info_request", {})
    async with connected(broker, await kernel_of(broker, session.session_id), legacy=True) as other:
        await other.ask("kernel_info_request", {})
        await session.run("print('by an agent')")
        for client in (kernel, other):
            shown = await client.until("execute_input", code="print('by an agent')")
            parent = shown["parent_header"]["msg_id"]
            await client.until("status", parent, execution_state="idle")
            assert kinds(client.answers(parent)) == ["busy", "execute_input", "stream", "idle"]
        msg_id = await other.execute("print('by a person')")
        await other.done(msg_id)
        await kernel.until("status", msg_id, execution_state="idle")
        assert kinds(kernel.answers(msg_id)) == ["busy", "execute_input", "stream", "idle"]


async def test_the_brokers_own_cells_are_not_seen(
    kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """A report, a table or an interrupt of the broker's sends nothing to Jupyter's clients."""
    await kernel.ask("kernel_info_request", {})
    kernel.messages.clear()
    await session.run("value = {'a': 1}", result_var="value")
    await session.variables()
    seen = await kernel.run("'last'")
    others = [each for each in kernel.messages if each not in seen]
    assert kinds(others) == ["busy", "execute_input", "idle"]


async def test_cells_keep_the_order_of_the_session(
    kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """Cells of an agent and of a person run one after the other, in the order in which they came."""
    first = await session.submit(
        "import time; print('begun', flush=True); time.sleep(0.5); order = ['agent']"
    )
    await kernel.until("stream")
    second = await kernel.execute("order.append('person')")
    third = await kernel.execute("print(order)")
    assert (await first.result()).success
    assert reply_of(await kernel.done(second))["status"] == "ok"
    assert text_of(await kernel.done(third)) == "['agent', 'person']\n"
    assert (await session.run("order")).text == "['agent', 'person']"


async def test_cells_after_a_failed_one_are_skipped(
    kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """After an error the waiting cells of Jupyter's clients are aborted, as in a stock kernel."""
    failing = await kernel.execute("import time; time.sleep(1); 1/0")
    await kernel.until("execute_input", failing)
    skipped = await kernel.execute("skipped = True")
    by_agent = await session.submit("kept = True")
    assert reply_of(await kernel.done(failing))["ename"] == "ZeroDivisionError"
    assert reply_of(await kernel.done(skipped)) == {"status": "aborted"}
    assert (await by_agent.result()).success
    going_on = await kernel.execute("1/0", stop_on_error=False)
    after = await kernel.execute("'kept' in globals(), 'skipped' in globals()")
    await kernel.done(going_on)
    shown = await kernel.done(after)
    (result,) = [each for each in shown if each["header"]["msg_type"] == "execute_result"]
    assert result["content"]["data"]["text/plain"] == "(True, False)"


async def test_names_stay_after_an_error(kernel: KernelClient) -> None:
    """A notebook's failed cell keeps what it has defined."""
    await kernel.run("half = 1; 1/0")
    answers = await kernel.run("print(half)")
    assert text_of(answers) == "1\n"


async def test_input(kernel: KernelClient) -> None:
    """A cell asks the client that has sent it for input."""
    msg_id = await kernel.execute("name = input('who? ')\nprint('hello', name)", allow_stdin=True)
    request = await kernel.until("input_request", msg_id)
    assert request["content"]["prompt"] == "who? "
    await kernel.send("input_reply", {"value": "Ada"}, channel="stdin")
    assert "hello Ada" in text_of(await kernel.done(msg_id))


async def test_completion_inspection_and_history(kernel: KernelClient) -> None:
    """The kernel completes, inspects, judges and remembers, without a place in the session's queue."""
    await kernel.run("some_name = 1")
    completed = await kernel.ask("complete_request", {"code": "some_n", "cursor_pos": 6})
    assert "some_name" in completed["matches"]
    inspected = await kernel.ask(
        "inspect_request", {"code": "zip", "cursor_pos": 3, "detail_level": 0}
    )
    assert inspected["found"]
    assert (await kernel.ask("is_complete_request", {"code": "def f("}))["status"] == "incomplete"
    asked = {"output": False, "raw": True, "session": 0, "start": 0, "stop": 9}
    tail = await kernel.ask("history_request", {**asked, "hist_access_type": "tail", "n": 5})
    assert tail["history"] == [[1, 1, "some_name = 1"]]
    found = await kernel.ask(
        "history_request", {**asked, "hist_access_type": "search", "pattern": "some*", "n": 5}
    )
    assert found["history"] == [[1, 1, "some_name = 1"]]


async def test_comms_with_buffers(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A comm carries messages with binary buffers both ways, in both forms of the protocol."""
    kernel_id = await kernel_of(broker, session.session_id)
    await session.run(ECHO)
    for legacy in (False, True):
        async with connected(broker, kernel_id, legacy=legacy) as kernel:
            name = f"comm-{legacy}"
            await kernel.send("comm_open", {"comm_id": name, "target_name": "echo", "data": {}})
            buffers = () if legacy else (b"\x01\x02",)
            await kernel.send("comm_msg", {"comm_id": name, "data": {"n": 1}}, buffers=buffers)
            answer = await kernel.until("comm_msg", comm_id=name)
            assert answer["content"]["data"] == {"got": {"n": 1}}
            assert answer["buffers"] == ([] if legacy else [b"\x00\xff\x01\x02"])
    async with connected(broker, kernel_id, legacy=True) as kernel:
        await kernel.ask("kernel_info_request", {})
        code = "from comm import create_comm; create_comm('x').send({}, buffers=[b'\\xe9\\x00'])"
        await session.run(code)
        assert (await kernel.until("comm_msg"))["buffers"] == [b"\xe9\x00"]


@pytest.mark.parametrize("channel", ["shell", "control"])
async def test_a_busy_kernel_is_no_dead_one(
    kernel: KernelClient, session: kernelbroker.Session, channel: str
) -> None:
    """What a kernel is, is answered at once, also while a cell runs; then the kernel is still busy."""
    idle = await kernel.ask("kernel_info_request", {}, channel=channel)
    assert idle["language_info"]["name"] == "python"
    running = await session.submit("import time; time.sleep(30)")
    await kernel.until("execute_input")
    async with asyncio.timeout(5):
        assert await kernel.ask("kernel_info_request", {}, channel=channel) == idle
    await kernel.until("status", execution_state="busy")
    await running.interrupt()


async def test_debugging(kernel: KernelClient) -> None:
    """A debugger sets a breakpoint, looks at a variable where the cell stops, and lets it go on."""
    info = await kernel.ask("kernel_info_request", {})
    assert "debugger" in info["supported_features"]
    numbers = iter(range(1, 100))

    async def debug(command: str, **arguments: object) -> dict[str, object]:
        request = {"type": "request", "seq": next(numbers), "command": command}
        reply = await kernel.ask(
            "debug_request", {**request, "arguments": arguments}, channel="control"
        )
        assert reply.get("success", True), reply
        body: dict[str, object] = reply.get("body", {})
        return body

    assert (await debug("debugInfo"))["isStarted"] is False
    await debug("initialize", clientID="test", adapterID="", pathFormat="path")
    await debug("attach")
    code = "total = 1\ntotal += 41\nprint(total)"
    dumped = await debug("dumpCell", code=code)
    await debug("setBreakpoints", source={"path": dumped["sourcePath"]}, breakpoints=[{"line": 2}])
    await debug("configurationDone")
    cell = await kernel.execute(code)
    stopped = await kernel.until("debug_event", event="stopped")
    thread = stopped["content"]["body"]["threadId"]
    frames = await debug("stackTrace", threadId=thread)
    frame = frames["stackFrames"][0]  # type: ignore[index]
    value = await debug("evaluate", expression="total", frameId=frame["id"], context="watch")
    assert value["result"] == "1"
    await debug("continue", threadId=thread)
    assert text_of(await kernel.done(cell)) == "42\n"
    await debug("disconnect", restart=False, terminateDebuggee=True)


async def test_a_client_that_comes_back_misses_nothing(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """What was sent while a client had no connection is there when it returns under the same session id."""
    kernel_id = await kernel_of(broker, session.session_id)
    async with connected(broker, kernel_id, session="notebook-1") as kernel:
        msg_id = await kernel.execute("import time; time.sleep(0.5); print('meanwhile')")
        await kernel.until("execute_input", msg_id)
    await session.run("1")  # the cell has ended
    async with connected(broker, kernel_id, session="notebook-1") as kernel:
        answers = await kernel.done(msg_id)
    assert text_of(answers) == "meanwhile\n" and reply_of(answers)["status"] == "ok"


async def test_a_dead_kernel_is_replaced(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """The cell gets an error, the kernel restarts under its id, and the connection stays."""
    msg_id = await kernel.execute("import os; os._exit(1)")
    await kernel.until("status", execution_state="restarting")
    assert reply_of(await kernel.done(msg_id))["ename"] == "KernelDied"
    assert text_of(await kernel.run("print('alive')")) == "alive\n"
    assert (await call(broker, "GET", f"/jupyter/api/kernels/{session.session_id}"))[0] == 200


async def test_exit(kernel: KernelClient) -> None:
    """`exit` has the payload of a stock kernel, whose process ends and is replaced."""
    answers = await kernel.run("exit")
    assert reply_of(answers)["payload"] == [{"source": "ask_exit", "keepkernel": False}]
    await kernel.until("status", execution_state="restarting")
    assert text_of(await kernel.run("print('alive')")) == "alive\n"


async def test_interrupt_and_restart(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """Both are the session's. A cell that follows an interrupt at once runs."""
    path = f"/jupyter/api/kernels/{await kernel_of(broker, session.session_id)}"
    sleeping = await kernel.execute(
        "import time\nwhile True: time.sleep(0.01)", stop_on_error=False
    )
    await kernel.until("execute_input", sleeping)
    interrupted, after = await asyncio.gather(
        call(broker, "POST", f"{path}/interrupt"), kernel.execute("print('next')")
    )
    assert interrupted[0] == 204
    assert reply_of(await kernel.done(sleeping))["ename"] == "KeyboardInterrupt"
    assert text_of(await kernel.done(after)) == "next\n"
    await kernel.run("lost = 1")
    status, model = await call(broker, "POST", f"{path}/restart")
    assert (status, model["id"]) == (200, path.rpartition("/")[2])
    await kernel.until("status", execution_state="restarting")
    await kernel.until("status", execution_state="starting")
    assert reply_of(await kernel.run("lost"))["ename"] == "NameError"


async def test_a_closed_session_ends_the_connection(
    broker: BrokerProcess, kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """A running cell gets a reply, the kernel is dead, and the connection is closed."""
    msg_id = await kernel.execute("import time; time.sleep(60)")
    await kernel.until("execute_input", msg_id)
    kernel_id = await kernel_of(broker, session.session_id)
    await session.close()
    await kernel.until("status", execution_state="dead")
    with pytest.raises(ConnectionClosed):
        while True:
            kernel.messages.append(await kernel.next())
    status, body = await call(broker, "GET", f"/jupyter/api/kernels/{kernel_id}")
    assert status == 404 and body["message"] and "reason" in body


async def test_secrets_are_masked(broker: BrokerProcess) -> None:
    """The values of a session's secrets are masked in what Jupyter's clients see."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(secrets={"KEY": "open-sesame"}) as session,
        connected(broker, await kernel_of(broker, session.session_id)) as kernel,
    ):
        answers = await kernel.run("import os; print(os.environ['KEY']); os.environ['KEY']")
        assert "open-sesame" not in json.dumps(answers)
        assert text_of(answers) == "***\n"


@pytest.mark.parametrize("legacy", [False, True])
async def test_garbage(broker: BrokerProcess, session: kernelbroker.Session, legacy: bool) -> None:
    """What is no message closes the connection with a reason; the kernel goes on."""
    kernel_id = await kernel_of(broker, session.session_id)
    for garbage in ("{", "[]", '{"header": 5}', b"\x00" * 3, b"\xff" * 100, "null"):
        async with connected(broker, kernel_id, legacy=legacy) as kernel:
            await kernel.websocket.send(garbage)
            with pytest.raises(ConnectionClosed) as closed:
                await kernel.next()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007
    async with connected(broker, kernel_id, legacy=legacy) as kernel:
        msg_id = await kernel.send("execute_request", {"code": 5})
        assert reply_of(await kernel.done(msg_id))["ename"] == "BadRequest"
        await kernel.send("kernel_info_request", {}, channel="nonsense")
        await kernel.send("nonsense_request", {"a": None})
        assert text_of(await kernel.run("print(1)")) == "1\n"
