"""The LangChain tools, the manager and the backend for deepagents, in real sandboxes."""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path
from typing import Any

import kernelbroker
import pytest

with warnings.catch_warnings(action="ignore"):  # of libraries that are not ours
    from deepagents import create_deep_agent
    from kernelbroker.langchain import (
        KernelBrokerSandbox,
        SandboxManager,
        create_sandbox_tools,
    )
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

from tests.e2e.support import ROOT, whole_system

pytestmark = [*whole_system, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PAGE = (ROOT / "docs" / "langchain.md").read_text()
PLOT = (
    "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); open('a.txt', 'w').write('x')"
)


class ScriptedModel(GenericFakeChatModel):
    """A model whose answers are written beforehand, and that knows of tools."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self


def named(tools: list[Any]) -> dict[str, Any]:
    return {tool.name: tool for tool in tools}


async def ask(tool: Any, thread: str | None, **arguments: Any) -> dict[str, Any]:
    config = {} if thread is None else {"configurable": {"thread_id": thread}}
    found = json.loads(await tool.ainvoke(arguments, config))
    assert found.keys() == {"success", "output", "error", "execution_time_ms", "artifacts"}
    return dict(found)


async def test_threads_have_sessions_of_their_own(client: kernelbroker.Broker) -> None:
    """Variables and files stay in a thread, and are not in another; pictures and files are artifacts."""
    tools = named(create_sandbox_tools(client))
    assert list(tools) == [
        "execute_python",
        "install_packages",
        "list_files",
        "read_file",
        "write_file",
    ]
    run = tools["execute_python"]
    found = await ask(run, "alice", code="x = 42; print(x)")
    assert (found["success"], found["output"], found["error"]) == (True, "42", None)
    assert isinstance(found["execution_time_ms"], int)
    assert (await ask(run, "alice", code="x"))["output"] == "42"
    other = await ask(run, "bob with spaces", code="x")
    assert "NameError" in other["error"] and not other["success"]
    assert "NameError" in (await ask(run, None, code="x"))["error"]
    await ask(tools["write_file"], "alice", path="/data/d/a.txt", content="hé")
    assert (await ask(tools["read_file"], "alice", path="d/a.txt"))["output"] == "hé"
    assert "d/a.txt" in (await ask(tools["list_files"], "alice", path="d"))["output"]
    assert not (await ask(tools["read_file"], "alice", path="none"))["success"]
    call = {"name": "execute_python", "args": {"code": PLOT}, "id": "1", "type": "tool_call"}
    message = await run.ainvoke(call, {"configurable": {"thread_id": "alice"}})
    image, file = message.artifact
    assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    assert (file["type"], file["path"]) == ("file", "a.txt")
    assert "data" not in message.content.replace("data/", "")
    for each in await client.sessions():
        await (await client.attach(each.session_id, keep=False)).close()


async def test_tools_without_a_loop_and_with_a_chosen_session(
    client: kernelbroker.Broker,
) -> None:
    """The tools are sync as well; the session is an id, a session, or a function of the config."""
    async with client.session("chosen") as session:
        await session.run("x = 1")
        for choice in ("chosen", session, lambda config: config["configurable"]["who"]):
            run = named(create_sandbox_tools(client, session=choice))["execute_python"]
            config = {"configurable": {"thread_id": "other", "who": "chosen"}}
            assert json.loads(run.invoke({"code": "x"}, config))["output"] == "1"


async def test_a_graph_with_a_scripted_model(client: kernelbroker.Broker) -> None:
    """An agent of LangGraph calls the tools; its threads do not share variables."""
    (code,) = re.findall(
        r"^```python\n# with_langgraph\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    page: dict[str, Any] = {}
    exec(code, page)

    def turn(code: str) -> list[AIMessage]:
        call = {"name": "execute_python", "args": {"code": code}, "id": "c", "type": "tool_call"}
        return [AIMessage("", tool_calls=[call]), AIMessage("done")]

    scripted = [*turn("n = 7"), *turn("n + 1"), *turn("n")]
    agent = page["make_agent"](client, ScriptedModel(messages=iter(scripted)))

    async def said(thread: str) -> dict[str, Any]:
        assert await page["answer"](agent, thread, "go") == "done"
        state = await agent.aget_state({"configurable": {"thread_id": thread}})
        messages = state.values["messages"]
        (*_, message) = (each for each in messages if isinstance(each, ToolMessage))
        return dict(json.loads(message.content))

    assert (await said("graph-a"))["success"]
    assert (await said("graph-a"))["output"] == "8"
    assert "NameError" in (await said("graph-b"))["error"]
    for name in ("graph-a", "graph-b"):
        await (await client.attach(name, keep=False)).close()


async def test_a_thread_goes_on_after_its_session(client: kernelbroker.Broker) -> None:
    """When a thread's session was closed, the next call has a new one with its files."""
    run = named(create_sandbox_tools(client))["execute_python"]
    for turn in range(3):
        found = await ask(run, "late", code=f"open('f', 'a').write('{turn}'); open('f').read()")
        assert found["success"], found
        assert (await ask(run, "late", code="open('f').read()"))["output"] == repr(
            "012"[: turn + 1]
        )
        (info,) = (each for each in await client.sessions() if each.workspace == "late")
        await (await client.attach(info.session_id, keep=False)).close()


async def test_manager(client: kernelbroker.Broker, tmp_path: Path) -> None:
    """The manager starts what is missing, stops once, and cleans up what is idle."""
    manager = SandboxManager(client)
    info = await manager.start("m1")
    assert (info.session_id, info.status, info.sandbox_type) == ("m1", "running", "default")
    assert (await manager.start("m1")).created_at == info.created_at
    await manager.execute("m1", "x = 5")
    assert str(await manager.execute("m1", "x")) == "5"
    (tmp_path / "in.txt").write_text("hello")
    await manager.upload("m2", tmp_path / "in.txt")
    await manager.download("m2", "in.txt", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "hello"
    await manager.stop("m1")
    await manager.stop("m1")
    await manager.stop("nobody")
    assert manager.info("m1").status == "stopped"  # type: ignore[union-attr]
    assert "NameError" in str((await manager.execute("m1", "x")).error)  # started again
    await manager.stop("m1")
    assert await manager.cleanup_expired(3600) == 0
    assert await manager.cleanup_expired(0) == 1
    assert manager.info("m2").status == "stopped"  # type: ignore[union-attr]
    with pytest.raises(kernelbroker.KernelBrokerError):
        await manager.start("m3", "nothing")
    assert manager.info("m3").status == "error"  # type: ignore[union-attr]
    assert SandboxManager.get_instance(client) is SandboxManager.get_instance()


async def test_deep_agents_backend(client: kernelbroker.Broker) -> None:
    """The backend's shell and file tools work in the session."""
    async with client.session("deep") as session:
        backend = KernelBrokerSandbox(client, session)
        assert backend.id == "deep"
        ran = await backend.aexecute("echo out; echo err >&2; exit 3")
        assert (ran.exit_code, ran.truncated, ran.output) == (3, False, "out\nerr\n")
        ran = await backend.aexecute("ls /nothing")
        assert (ran.exit_code, ran.output.count("\n")) == (2, 1), "no line but that of the program"
        ran = await backend.aexecute("echo begun; sleep 60", timeout=1)
        assert (ran.exit_code, ran.output.splitlines()[0]) == (124, "begun")
        assert "longer than 1 s" in ran.output and "KeyboardInterrupt" not in ran.output
        files = [("/data/a.txt", b"one\ntwo\n"), ("/tmp/b.bin", b"\0\1")]
        assert [each.error for each in await backend.aupload_files(files)] == [None, None]
        (refused,) = await backend.aupload_files([("relative.txt", b"1")])
        assert refused.error == "invalid_path"
        (refused,) = await backend.adownload_files(["a.txt"])
        assert refused.error == "invalid_path"
        found = await backend.adownload_files(["/data/a.txt", "/tmp/b.bin", "/data/c", "/tmp/d"])
        assert [each.content for each in found] == [b"one\ntwo\n", b"\0\1", None, None]
        assert [each.error for each in found][2:] == ["file_not_found"] * 2
        assert await session.files.read("a.txt") == b"one\ntwo\n"
        assert "two" in str((await backend.aread("/data/a.txt")).file_data)
        edited = await backend.aedit("/data/a.txt", "two", "three")
        assert edited.error is None, edited
        assert await session.files.read("a.txt") == b"one\nthree\n"
        assert [each["path"] for each in (await backend.als("/data")).entries] == ["/data/a.txt"]


async def test_a_deep_agent(client: kernelbroker.Broker) -> None:
    """An agent of deepagents writes a file and runs a command in the session."""

    def turn(tool: str, **arguments: str) -> AIMessage:
        call = {"name": tool, "args": arguments, "id": tool, "type": "tool_call"}
        return AIMessage("", tool_calls=[call])

    scripted = [
        turn("write_file", file_path="/data/n.py", content="print(6 * 7)"),
        turn("execute", command="python3 n.py"),
        AIMessage("done"),
    ]
    model = ScriptedModel(messages=iter(scripted))
    async with client.session("deeper") as session:
        agent = create_deep_agent(model, backend=KernelBrokerSandbox(client, "deeper"))
        state = await agent.ainvoke({"messages": [("user", "go")]})
        messages = state["messages"]
        answers = {each.name: each.content for each in messages if isinstance(each, ToolMessage)}
        assert "42" in answers["execute"]
        assert messages[-1].content == "done"
        assert await session.files.read("n.py") == b"print(6 * 7)"
