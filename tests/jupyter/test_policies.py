"""Jupyter clients where a policy assesses code: what it refuses gets an error, and nothing runs past it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, whole_system
from tests.jupyter.support import KernelClient, connected, kernel_of, kinds, reply_of, text_of
from tests.jupyter.test_channels import ECHO

pytestmark = whole_system

RISKY = "import shutil; shutil.rmtree('/')"
MODES = {"refusing": "PolicyRefused", "asking": "ConfirmationRequired"}


@pytest.fixture(scope="module", params=MODES)
def template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def session(broker: BrokerProcess, template: str) -> AsyncIterator[kernelbroker.Session]:
    """A session of an agent, whose template has the policy."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(template=template) as session,
    ):
        yield session


async def test_risky_cells_get_an_error(
    kernel: KernelClient, session: kernelbroker.Session, template: str
) -> None:
    """A risky cell, or expression beside a cell, is not run and gets an error; harmless ones run."""
    for code, options in (
        (RISKY, {}),
        (RISKY, {"silent": True}),
        ("1", {"user_expressions": {"a": f"exec({RISKY!r})"}}),
    ):
        answers = await kernel.run(code, **options)
        reply = reply_of(answers)
        assert (reply["status"], reply["ename"]) == ("error", MODES[template])
        assert "deletes" in reply["evalue"] and "It was not run" in reply["evalue"]
        assert kinds(answers) == ["busy", "error", "execute_reply", "idle"]
    assert text_of(await kernel.run("print(1)")) == "1\n"
    assert len(await session.executions()) == 1


async def test_cells_after_a_refused_one_are_skipped(
    kernel: KernelClient, session: kernelbroker.Session
) -> None:
    """Whoever runs a whole notebook sees that it stops there, as after any other error."""
    first = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nfirst = 1"
    sent = [await kernel.execute(code) for code in (first, RISKY, "never = 1", "print('never')")]
    # The broker reads messages in their order: with this reply it has all of them.
    await kernel.ask("kernel_info_request", {}, channel="control")
    await session.files.write("go", "")
    replies = [reply_of(await kernel.done(each)) for each in sent]
    assert [each["status"] for each in replies] == ["ok", "error", "aborted", "aborted"]
    going_on = await kernel.execute(RISKY, stop_on_error=False)
    after = await kernel.execute("print('first' in globals(), 'never' in globals())")
    assert reply_of(await kernel.done(going_on))["status"] == "error"
    assert text_of(await kernel.done(after)) == "True False\n"


async def test_a_debugger_evaluates_nothing(kernel: KernelClient, template: str) -> None:
    """Its requests that run code are refused in its own form; it can still look and step."""
    code = "total = 1\ntotal += 41\nprint(total)"

    async def debug(command: str, **arguments: object) -> Any:
        request = {"type": "request", "seq": 7, "command": command, "arguments": arguments}
        return await kernel.ask("debug_request", request, channel="control")

    assert (await debug("debugInfo"))["body"]["isStarted"] is False
    await debug("initialize", clientID="test", adapterID="", pathFormat="path")
    assert (await debug("attach"))["success"]
    source = {"path": (await debug("dumpCell", code=code))["body"]["sourcePath"]}
    for command, arguments in {
        "evaluate": {"expression": "touched = 1"},
        "setVariable": {"name": "total", "value": "exec('touched = 1')"},
        "setExpression": {"expression": "total", "value": "exec('touched = 1')"},
        "completions": {"text": "f().", "column": 4},
        "launch": {"program": "x.py"},
        "nonsense": {},
        "": {},
    }.items():
        failed = await debug(command, **arguments)  # type: ignore[arg-type]
        assert (failed["type"], failed["success"], failed["request_seq"]) == ("response", False, 7)
        assert failed["command"] == command and "policy" in failed["message"]
    for field in ("condition", "hitCondition", "logMessage"):
        place = {"line": 2, field: "touched := 1"}
        assert not (await debug("setBreakpoints", source=source, breakpoints=[place]))["success"]
    assert (await debug("setBreakpoints", source=source, breakpoints=[{"line": 2}]))["success"]
    await debug("configurationDone")
    cell = await kernel.execute(code)
    stopped = (await kernel.until("debug_event", event="stopped"))["content"]["body"]
    frames = (await debug("stackTrace", threadId=stopped["threadId"]))["body"]["stackFrames"]
    scopes = (await debug("scopes", frameId=frames[0]["id"]))["body"]["scopes"]
    asked = {"variablesReference": scopes[0]["variablesReference"]}
    names = [each["name"] for each in (await debug("variables", **asked))["body"]["variables"]]
    assert "total" in names
    assert (await debug("continue", threadId=stopped["threadId"]))["success"]
    assert text_of(await kernel.done(cell)) == "42\n"
    assert (await debug("disconnect", restart=False, terminateDebuggee=True))["success"]
    assert text_of(await kernel.run("print('touched' in globals())")) == "False\n"


async def test_comms_pass(kernel: KernelClient) -> None:
    """Messages of comms run no code of their own: they reach what cells have defined."""
    await kernel.run(ECHO)
    await kernel.send("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}})
    await kernel.send("comm_msg", {"comm_id": "c", "data": {"code": RISKY}})
    answer = await kernel.until("comm_msg", comm_id="c")
    assert answer["content"]["data"] == {"got": {"code": RISKY}}


async def test_unknown_requests_are_refused(kernel: KernelClient) -> None:
    """What the broker does not know may run code, so the policy refuses it."""
    reply = await kernel.ask("apply_request", {}, buffers=(b"pickle",))
    assert reply["ename"] == "PolicyRefused"
    completed = await kernel.ask("complete_request", {"code": "pri", "cursor_pos": 3})
    assert "print" in completed["matches"]


@pytest.mark.parametrize("channel", ["control", "stdin"])
async def test_cells_only_on_the_shell_channel(
    broker: BrokerProcess, template: str, channel: str
) -> None:
    """No cell gets past the queue and the policy by another channel, with or without a policy."""
    for name in ("default", template):
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session(template=name) as session,
            connected(broker, await kernel_of(broker, session.session_id)) as kernel,
        ):
            content = {"code": "passed = 1", "silent": False}
            msg_id = await kernel.send("execute_request", content, channel=channel)
            failed = (await kernel.until("error", msg_id))["content"]
            assert failed["ename"] == "BadRequest" and "channel shell" in failed["evalue"]
            assert (await session.run("print('passed' in globals())")).stdout == "False\n"
