"""The façade for agents: requests, actions, and the tool for models, in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import AsyncIterator
from typing import Any

import kernelbroker
import pytest
from kernelbroker.agents import (
    RUN_CODE_SCHEMA,
    Action,
    ActionResult,
    AgentWorkspace,
    ExecutionEngine,
    ExecutionRequest,
    ExecutionResult,
    RiskLevel,
    SandboxManager,
    get_risk_level,
    requires_confirmation_for,
    run_code,
)

from tests.support.requires import requires

with warnings.catch_warnings(action="ignore"):  # of libraries that are not ours
    from kernelbroker.langchain import create_run_code_tool

from tests.e2e.support import ROOT, BrokerProcess, whole_system

pytestmark = [
    *whole_system,
    requires("node"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "agents.md").read_text(), re.MULTILINE | re.DOTALL
)
DATA = {"stdout", "stderr", "exit_code", "sandbox_type"}


@pytest.fixture
async def manager(client: kernelbroker.Broker) -> AsyncIterator[SandboxManager]:
    async with SandboxManager(broker=client) as manager:
        yield manager


@pytest.mark.parametrize(
    ("language", "code", "stdout"),
    [
        ("python", "print(1)\n1 + 1", "1\n2\n"),
        ("javascript", "console.log('js', 1 + 1)", "js 2\n"),
        ("shell", "echo $((1 + 2))", "3\n"),
    ],
)
async def test_code_runs_in_each_language(
    manager: SandboxManager, language: str, code: str, stdout: str
) -> None:
    """Each language has its output, and a result that is JSON."""
    result = await manager.execute(ExecutionRequest(code, language))
    assert result == ExecutionResult(
        success=True,
        stdout=stdout,
        sandbox_type="subprocess",
        execution_time_ms=result.execution_time_ms,
    )
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert result.to_dict().keys() == {
        "success",
        "stdout",
        "stderr",
        "exit_code",
        "error",
        "sandbox_type",
        "execution_time_ms",
        "files_created",
    }


def test_defaults() -> None:
    """A request has the documented defaults."""
    request = ExecutionRequest("1")
    assert (request.language, request.timeout, request.sandbox_type) == ("python", 30, None)
    assert (request.session_id, request.max_memory_mb, request.max_output_mb) == (None, 512, 10)


async def test_failures_are_results(manager: SandboxManager) -> None:
    """Errors, exit statuses, timeouts and requests that are not valid have a result that says so."""
    result = await manager.execute(ExecutionRequest("1 / 0"))
    assert (result.success, result.exit_code) == (False, 1)
    assert result.error == "ZeroDivisionError: division by zero"
    assert "Traceback" in result.stderr
    result = await manager.execute(ExecutionRequest("echo no >&2; exit 7", "shell"))
    assert (result.success, result.exit_code) == (False, 7)
    assert result.stderr.startswith("no\n")
    result = await manager.execute(ExecutionRequest("while True: pass", timeout=1))
    assert (result.success, result.exit_code) == (False, 1)
    assert "longer than 1 s" in str(result.error)
    await manager.execute(ExecutionRequest("0"))  # the kernel may have been replaced
    for request, reason in [
        (ExecutionRequest("1", "ruby"), "unknown language 'ruby'"),
        (ExecutionRequest("1", sandbox_type="vm"), "unknown sandbox_type 'vm'"),
        (ExecutionRequest("1", timeout=0), "timeout"),
        (ExecutionRequest("1", timeout=float("nan")), "timeout"),
        (ExecutionRequest("1", timeout=10_000), "timeout is at most 300 s"),
        (ExecutionRequest("1", max_memory_mb=-1), "max_memory_mb"),
        (ExecutionRequest("1", max_memory_mb=1), "uses"),
        (ExecutionRequest("1", max_output_mb=True), "max_output_mb"),
        (ExecutionRequest(None), "code must be text"),  # type: ignore[arg-type]
        (ExecutionRequest("x" * 200_000), "characters"),
    ]:
        result = await manager.execute(request)
        assert (result.success, result.exit_code) == (False, -1), request
        assert reason in str(result.error)
    assert (await manager.execute(ExecutionRequest("print('well')"))).stdout == "well\n"


async def test_state_stays_until_the_cleanup_and_files_after_it(
    client: kernelbroker.Broker,
) -> None:
    """Variables stay from request to request, files also after the session; others see neither."""
    manager = SandboxManager("Alice's thread #1", broker=client)
    code = "import pathlib; x = 1; _ = pathlib.Path('a.txt').write_text('a')"
    assert (await manager.execute(ExecutionRequest(code))).files_created == ["a.txt"]
    result = await manager.execute(ExecutionRequest("_ = open('a.txt', 'a').write('b'); print(x)"))
    assert (result.stdout, result.files_created) == ("1\n", [])
    other = ExecutionRequest(
        "import os; print(os.listdir(), 'x' in globals()); _ = open('b', 'w').write('b')",
        session_id="bob",
    )
    assert (await manager.execute(other)).stdout == "[] False\n"
    await manager.cleanup()
    again = SandboxManager("Alice's thread #1", broker=client)
    result = await again.execute(ExecutionRequest("print(open('a.txt').read(), 'x' in globals())"))
    assert result.stdout == "ab False\n"
    for session in await client.sessions():
        if session.workspace == again.workspace:
            await (await client.attach(session.session_id, keep=False)).close()
    result = await again.execute(ExecutionRequest("print(open('a.txt').read())"))
    assert result.stdout == "ab\n", result.error
    await again.cleanup()
    names = {workspace.name for workspace in await client.workspaces()}
    assert {again.workspace, "bob"} <= names


@requires("control groups")
async def test_limits_of_a_request(manager: SandboxManager) -> None:
    """Memory and output are limited for one request; variables stay if the next one may use more."""
    grow = "x = bytes(b'x') * (300 << 20); print(len(x))"
    result = await manager.execute(ExecutionRequest("kept = 1", max_memory_mb=250))
    assert result.success, result.error
    result = await manager.execute(ExecutionRequest(grow, max_memory_mb=600))
    assert result.success, result.error
    result = await manager.execute(ExecutionRequest("print(kept)", max_memory_mb=250))
    assert "sandbox uses" in str(result.error)
    result = await manager.execute(ExecutionRequest("del x; print(kept)"))
    assert result.stdout == "1\n"
    result = await manager.execute(ExecutionRequest(grow, max_memory_mb=250))
    assert (result.success, result.exit_code) == (False, 1)
    assert "OutOfMemory" in str(result.error)
    result = await manager.execute(ExecutionRequest("print('x' * 100_000)", max_output_mb=0.01))
    assert (result.success, len(result.stdout) < 10_486) == (True, True)
    result = await manager.execute(ExecutionRequest("print('x' * 100_000)"))
    assert len(result.stdout) == 100_001


async def test_code_runs_where_its_risk_belongs(manager: SandboxManager) -> None:
    """Safe code runs in a jail, other code moves with its state, and a named kind is taken."""
    result = await manager.execute(ExecutionRequest("kept = 41"))
    assert result.sandbox_type == "subprocess", result.error
    code = "import subprocess; print(subprocess.check_output(['echo', 'x']).decode(), kept)"
    result = await manager.execute(ExecutionRequest(code))
    assert (result.sandbox_type, result.stdout) == ("docker_simple", "x\n 41\n"), result.error
    result = await manager.execute(ExecutionRequest("rm -rf /", "shell"))
    assert (result.success, result.exit_code) == (False, -1)
    assert str(result.error).startswith("execution rejected: ")
    result = await manager.execute(ExecutionRequest("print(kept)", sandbox_type="subprocess"))
    assert (result.sandbox_type, result.stdout) == ("subprocess", "41\n"), result.error


async def test_a_session_of_the_user_is_joined(client: kernelbroker.Broker) -> None:
    """A manager uses an open session with its id, which was opened with another template."""
    async with client.session("joined", template="default", workspace_retention=0) as session:
        await session.run("mine = 1")
        async with SandboxManager("joined", broker=client) as manager:
            result = await manager.execute(ExecutionRequest("print(mine)"))
            assert (result.stdout, result.sandbox_type) == ("1\n", "subprocess"), result.error
        assert (await session.run("print(mine)")).stdout == "1\n"


async def test_stats(client: kernelbroker.Broker, manager: SandboxManager) -> None:
    """The stats count the sandboxes of the broker; requests make no pools and no templates."""
    before = (await client.pool_status())["templates"].keys()
    await manager.execute(ExecutionRequest("1", max_memory_mb=300))
    stats = await manager.get_stats()
    assert stats.keys() == {"total", "busy", "idle", "max"}
    pools = (await client.pool_status())["templates"].values()
    assert stats["max"] == sum(each["max_containers"] for each in pools)
    assert 1 <= stats["busy"] <= stats["total"] <= stats["max"]
    assert (await client.pool_status())["templates"].keys() == before


async def test_requests_of_one_session_run_in_order(manager: SandboxManager) -> None:
    """Requests that come at once run one after the other, with the limits of each."""
    await manager.execute(ExecutionRequest("seen = []"))
    await asyncio.gather(
        *(
            manager.execute(ExecutionRequest(f"seen.append({n})", max_memory_mb=400 + n))
            for n in range(5)
        )
    )
    assert (await manager.execute(ExecutionRequest("print(seen)"))).stdout == "[0, 1, 2, 3, 4]\n"


async def test_an_unreachable_broker_is_a_result() -> None:
    """Where no broker answers, the result says so."""
    async with SandboxManager(broker=kernelbroker.connect("http://127.0.0.1:9", "x")) as manager:
        result = await manager.execute(ExecutionRequest("1"))
    assert (result.success, result.exit_code) == (False, -1)
    assert "no broker at" in str(result.error)


class Pages:
    """A browser for tests."""

    async def execute(self, action: str, params: Any) -> ActionResult:
        return ActionResult(True, {"action": action, **params})


async def test_actions(client: kernelbroker.Broker) -> None:
    """Actions run code and use files, in one workspace; those that cannot are results."""
    async with ExecutionEngine("plan", broker=client) as engine:
        data: dict[str, Any] = {"operation": "write", "path": "in/a.txt", "content": "text"}
        written = await engine.execute(Action("file_operation", data))
        assert written == ActionResult(True, {"path": "in/a.txt", "size": 4})
        code = "print(open('in/a.txt').read()); _ = open('out.bin', 'wb').write(b'\\xff')"
        ran = await engine.execute(Action("code_execution", {"code": code, "timeout": 20}))
        assert ran.success, ran.error
        assert (ran.data["stdout"], ran.data["files_created"]) == ("text\n", ["out.bin"])
        assert ran.data.keys() >= DATA
        ran = await engine.execute(Action("code_execution", {"code": "1 / 0"}))
        assert (ran.success, ran.error) == (False, "ZeroDivisionError: division by zero")
        for path, content, encoding in [
            ("/data/in/a.txt", "text", "utf-8"),
            ("out.bin", "/w==", "base64"),
        ]:
            read = await engine.execute(
                Action("file_operation", {"operation": "read", "path": path})
            )
            assert (read.data["content"], read.data["encoding"]) == (content, encoding)
            assert json.loads(json.dumps(read.to_dict())) == read.to_dict()
        found = await engine.execute(Action("file_operation", {"operation": "list"}))
        assert found.data["files"] == ["in/a.txt", "out.bin"]
    assert await engine.workspace.list_files() == ["in/a.txt", "out.bin"]
    await engine.workspace.cleanup()


async def test_actions_that_cannot_be_carried_out(client: kernelbroker.Broker) -> None:
    """Nothing that an action asks for raises."""
    async with ExecutionEngine(broker=client) as engine:
        for action, reason in [
            (Action("dream", {}), "unknown action type 'dream'"),
            (Action(None, {}), "unknown action type"),  # type: ignore[arg-type]
            (Action(["x"], {}), "unhashable"),  # type: ignore[arg-type]
            (Action("code_execution", {}), "needs 'code'"),
            (Action("code_execution", "print(1)"), "must be a dict"),  # type: ignore[arg-type]
            (Action("code_execution", {"code": 5}), "code must be text"),
            (Action("code_execution", {"code": "1", "colour": 1}), "unknown field 'colour'"),
            (Action("file_operation", {}), "unknown file operation None"),
            (Action("file_operation", {"operation": "burn"}), "unknown file operation 'burn'"),
            (Action("file_operation", {"operation": "read"}), "needs 'path'"),
            (Action("file_operation", {"operation": "read", "path": "none"}), "no"),
            (Action("file_operation", {"operation": "read", "path": "../x"}), "'..'"),
            (Action("file_operation", {"operation": "write", "path": "x"}), "needs 'content'"),
            (
                Action("file_operation", {"operation": "write", "path": "../x", "content": "x"}),
                "'..'",
            ),
            (Action("web_browsing", {"url": "http://localhost"}), "aio_sandbox"),
        ]:
            result = await engine.execute(action)
            assert result.success is False, action
            assert reason in str(result.error), action
    await engine.workspace.cleanup()
    engine = ExecutionEngine(broker=client, browser=Pages())
    result = await engine.execute(Action("web_browsing", {"action": "click", "selector": "a"}))
    assert result == ActionResult(True, {"action": "click", "selector": "a"})
    broken = ExecutionEngine(broker=kernelbroker.connect("http://127.0.0.1:9", "x"))
    result = await broken.execute(Action("file_operation", {"operation": "list"}))
    assert "no broker at" in str(result.error)


async def test_the_tool_is_a_function(
    broker: BrokerProcess, client: kernelbroker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run_code` answers with its data, keeps nothing without a manager, and refuses what is not valid."""
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", broker.token)
    before = {workspace.name for workspace in await client.workspaces()}
    result = await run_code("x = 1; print(x)")
    assert (result.success, result.error) == (True, None)
    assert result.data == {
        "stdout": "1\n",
        "stderr": "",
        "exit_code": 0,
        "sandbox_type": "subprocess",
    }
    assert "NameError" in str((await run_code("print(x)")).error)
    assert (await run_code("exit 3", "shell", 10)).data["exit_code"] == 3
    for arguments, reason in [
        (("1", "python", 0.5), "timeout is 1 to 300 s"),
        (("1", "python", 301), "timeout is 1 to 300 s"),
        (("1", "ruby"), "unknown language"),
        (("1", "python", "soon"), "timeout must be a number"),
    ]:
        result = await run_code(*arguments)  # type: ignore[arg-type]
        assert (result.success, result.data["exit_code"]) == (False, -1)
        assert reason in str(result.error)
    async with SandboxManager(broker=client) as manager:
        await run_code("x = 5", manager=manager)
        assert (await run_code("print(x)", manager=manager)).data["stdout"] == "5\n"
    assert {workspace.name for workspace in await client.workspaces()} <= before
    assert RUN_CODE_SCHEMA["properties"]["timeout"]["maximum"] == 300


def test_risk_without_a_broker() -> None:
    """The tool tells the risk of code, and whether to ask."""
    assert get_risk_level("print(1)") == RiskLevel.LOW == "LOW"
    assert not requires_confirmation_for("print(1)")
    assert get_risk_level("import os; os.system('rm -rf /')") == RiskLevel.CRITICAL
    assert requires_confirmation_for("rm -rf /", "shell")
    assert run_code.get_risk_level("rm -rf /", "shell") == RiskLevel.CRITICAL  # type: ignore[attr-defined]
    assert run_code.requires_confirmation_for("rm -rf /", "shell")  # type: ignore[attr-defined]
    assert get_risk_level("puts 1", "ruby") == RiskLevel.HIGH


async def test_the_tool_of_langchain(client: kernelbroker.Broker) -> None:
    """`run_code` for LangChain has the same arguments and data, and a session for each thread."""
    tool = create_run_code_tool(client)
    assert tool.name == "run_code"
    schema = tool.args_schema.model_json_schema()  # type: ignore[union-attr]
    timeout = schema["properties"]["timeout"]
    assert (timeout["minimum"], timeout["maximum"], timeout["default"]) == (1, 300, 30)
    config: Any = {"configurable": {"thread_id": "tool-thread"}}
    found = json.loads(await tool.ainvoke({"code": "x = 1; print(x)"}, config))
    assert found == {
        "success": True,
        "stdout": "1\n",
        "stderr": "",
        "exit_code": 0,
        "sandbox_type": "subprocess",
        "error": None,
    }
    found = json.loads(
        await asyncio.to_thread(
            tool.invoke, {"code": "echo $((1 + 1))", "language": "shell"}, config
        )
    )
    assert found["stdout"] == "2\n"
    assert json.loads(await tool.ainvoke({"code": "print(x)"}, config))["stdout"] == "1\n"
    assert "NameError" in json.loads(await tool.ainvoke({"code": "print(x)"}))["error"]
    with pytest.raises(ValueError, match="300"):
        await tool.ainvoke({"code": "1", "timeout": 301}, config)
    await (await client.attach("tool-thread", keep=False)).close()


async def test_a_manager_uses_an_agents_workspace(client: kernelbroker.Broker) -> None:
    """A manager runs code in the files of a workspace that the agent has prepared."""
    async with AgentWorkspace("prepared", client, layout="agent") as workspace:
        await workspace.write_file("code/main.py", "print('from a file')")
        async with SandboxManager("runner", workspace, broker=client) as manager:
            result = await manager.execute(ExecutionRequest("python code/main.py", "shell"))
            assert result.stdout == "from a file\n"
    await workspace.cleanup()


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("total", b"42"),
        (
            "steps",
            [
                "42\n",
                "/home/sandbox\n",
                "42\n",
                "unknown action type 'teleport'; there are: code_execution, file_operation, web_browsing",
            ],
        ),
    ],
)
async def test_the_page(client: kernelbroker.Broker, function: str, answer: object) -> None:
    """The programs of docs/agents.md work as shown."""
    (block,) = [each for each in BLOCKS if f"async def {function}(" in each]
    names: dict[str, Any] = {}
    exec(block, names)
    assert await names[function](client) == answer
    for name in ("alice", "report"):
        await AgentWorkspace(name, client).cleanup()
