"""Coding agents that flood, hang, hide processes or break, and projects that try to run code."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker import CodeOperationError, ModelReply, ToolCall

from tests.e2e.support import BrokerProcess, call, running_broker, whole_system
from tests.e2e.test_mcp import connected
from tests.support.requires import requires

pytestmark = [*whole_system, requires("git")]

FAKE = Path(__file__).parents[1] / "support" / "coding_agents" / "fake_agent.py"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-agents-") as name:
        programs = Path(name, "node_modules", ".bin")
        programs.mkdir(parents=True)
        Path(name).chmod(0o755)
        shutil.copy(FAKE, programs / "claude")
        options: dict[str, object] = {
            "POOL__MIN_SIZE": 1,
            "POOL__MAX_SIZE": 4,
            "SANDBOX__SHARED_DATA": name,
            "SANDBOX__ENV": '{"ANTHROPIC_API_KEY": "mine"}',
            "MCP__TOOL_SETS": '["project"]',
            "TEMPLATES__CAREFUL__POLICY": "block",
            "TEMPLATES__CAREFUL__POOL__MIN_SIZE": 0,
        }
        with running_broker(**options) as broker:
            yield broker


@pytest.fixture
async def session(broker: BrokerProcess, tmp_path: Path) -> AsyncIterator[kernelbroker.Session]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        await session.code.upload(project)
        yield session


async def processes(session: kernelbroker.Session) -> list[str]:
    """The names of the pid files of the fake agent whose processes still run."""
    code = """
import pathlib

def runs(pid):
    try:
        state = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

files = sorted(pathlib.Path("/data/project").glob("*.pid"))
found = [len(files), *(f.name for f in files if runs(f.read_text()))]
"""
    result = await session.run(code, result_var="found")
    assert result.return_value[0] == 2, "the agent has started both"
    return list(result.return_value[1:])


async def test_the_result_of_an_agent(session: kernelbroker.Session) -> None:
    """The diff shows what the agent has committed, the plan is an event, and the cost is told."""
    await session.code.run(
        "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm a"
    )
    run = session.coding_agent.run("edit", tests=False)
    plans = [event.steps async for event in run if event.type == "plan"]
    result = await run
    assert plans == [[{"step": "mend", "status": "completed"}]]
    assert (result.agent, result.requested, result.cost_usd) == ("claude-code", None, 0.5)
    assert result.usage["input_tokens"] == 3
    assert result.tests is None
    assert "+    return a + b" in str(result.diff)
    assert run.result == result


async def test_garbage_is_survived(session: kernelbroker.Session) -> None:
    """Lines that are no events are output, lines that are too long are counted, and the task goes on."""
    run = session.coding_agent.run("garbage")
    events = [event async for event in run]
    result = await run
    assert (result.outcome, result.text, result.cost_usd) == ("completed", "done", 0.5)
    assert result.events_dropped == 1
    output = "".join(event.text for event in events if event.type == "stdout")
    assert "no JSON at all" in output
    assert "error" in (result.tests or {}), "the project has no tests"


async def test_a_flood_of_events_is_cut(session: kernelbroker.Session) -> None:
    """Of too many events the first ones are passed on, and the others counted."""
    run = session.coding_agent.run("flood", tests=False)
    events = [event async for event in run if event.type == "step_start"]
    result = await run
    assert (result.events, len(events)) == (5_000, 5_000)
    assert result.events_dropped == 15_001
    assert (result.outcome, result.turns) == ("completed", 1)


async def test_gigabytes_end_the_agent(session: kernelbroker.Session) -> None:
    """An agent that writes without end is ended, and its result has the reason and the changes."""
    result = await session.coding_agent.run("gigabytes", tests=False)
    assert (result.success, result.outcome) == (False, "output_limit")
    assert result.diff == ""


async def test_what_an_agent_leaves_behind_ends(session: kernelbroker.Session) -> None:
    """A child and a daemon in a session of its own end with the agent."""
    result = await session.coding_agent.run("leave", tests=False)
    assert result.outcome == "completed"
    assert await processes(session) == []


async def test_a_time_limit_keeps_what_was_done(session: kernelbroker.Session) -> None:
    """An agent that does not end is ended in time for its diff, with all its processes."""
    result = await session.coding_agent.run("stay", timeout=30, tests=False)
    assert (result.success, result.outcome, result.text) == (False, "timeout", "ready")
    assert result.files == ["child.pid", "daemon.pid"]
    assert await processes(session) == []


async def test_an_interrupt_ends_the_agent(session: kernelbroker.Session) -> None:
    """An interrupt of the session ends the agent's whole process tree."""
    run = session.coding_agent.run("stay")
    with pytest.raises(CodeOperationError) as raised:
        async for event in run:
            if event.text == "ready":
                await session.interrupt()
    assert raised.value.code == "interrupted"
    assert await processes(session) == []


async def test_leaving_the_events_ends_the_agent(session: kernelbroker.Session) -> None:
    """Who stops listening ends the agent."""
    async with aclosing(session.coding_agent.run("stay").events()) as events:
        async for event in events:
            if event.text == "ready":
                break
    assert await processes(session) == []


async def test_an_agent_that_kills_its_parent(session: kernelbroker.Session) -> None:
    """The kernel survives, and the agent has failed."""
    await session.run("x = 1")
    result = await session.coding_agent.run("kill the parent", tests=False)
    assert (result.outcome, result.exit_code) == ("failed", 137)
    assert "child.pid" not in await processes(session)
    assert str(await session.run("x")) == "1"


@pytest.mark.parametrize(
    ("task", "env", "code", "reason"),
    [
        ("fail", {}, "agent_failed", "cannot start"),
        ("refused", {}, "no_model", "Invalid API key"),
        ("edit", {"ANTHROPIC_API_KEY": ""}, "no_model", "set ANTHROPIC_BASE_URL"),
        ("edit", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "no_model", "does not answer"),
    ],
)
async def test_an_agent_without_a_model(
    broker: BrokerProcess, tmp_path: Path, task: str, env: dict[str, str], code: str, reason: str
) -> None:
    """An agent that does not start or finds no model gives way to native; without a client it is an
    error."""
    (tmp_path / "calc.py").write_text("")

    def model(_: Any) -> ModelReply:
        return ModelReply("nothing to do")

    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(env=env) as session,
    ):
        await session.code.upload(tmp_path)
        result = await session.coding_agent.run(
            task, agent="claude-code", client=model, tests=False
        )
        with pytest.raises(CodeOperationError) as raised:
            await session.coding_agent.run(task, agent="claude-code")
    assert (result.agent, result.text) == ("native", "nothing to do")
    assert reason in str(result.fallback)
    assert raised.value.code == code
    assert reason in raised.value.message


async def test_invalid_tasks_are_refused(session: kernelbroker.Session) -> None:
    """Unknown agents, empty tasks and clients of no kind are refused with the reason."""
    for parameters in ({"task": " "}, {"task": "x" * 30_001}, {"task": "a\0b"}, {}):
        with pytest.raises(kernelbroker.CodeOperationValidationError):
            await session.code.execute("run_coding_agent", parameters)
    with pytest.raises(kernelbroker.CodeOperationValidationError, match="claude-code, gemini-cli"):
        await session.coding_agent.run("edit", agent="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="client="):
        session.coding_agent.run("edit", agent="native")
    with pytest.raises(TypeError, match="str"):
        session.coding_agent.run("edit", client="gpt")


def make_hostile(project: Path) -> Path:
    """A project that wants to run code when git looks at it."""
    project.mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    subprocess.run(["git", "init", "-q", project / "nested"], check=True)
    trap = "touch /tmp/trapped"
    with (project / ".git" / "config").open("a") as file:
        file.write(
            f'[core]\nfsmonitor = "{trap}"\n[filter "t"]\nclean = "{trap}; cat"\nrequired = true\n'
        )
    (project / ".gitattributes").write_text("* filter=t diff=t\n")
    hook = project / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{trap}\n")
    hook.chmod(0o755)
    (project / "a\nb.txt").write_text("1\n")
    (project / "link").symlink_to("a\nb.txt")
    return project


async def test_a_project_runs_nothing_in_snapshots(
    session: kernelbroker.Session, tmp_path: Path
) -> None:
    """Hooks, monitors and filters of the project are not run by the diff; odd names and files are no
    failure."""
    project = make_hostile(tmp_path / "hostile")
    await session.code.upload(project, replace=True)
    before = (await session.code.snapshot()).result["snapshot"]
    await session.run("""
open("/data/project/a\\nb.txt", "w").write("2\\n")
open("/data/project/n", "wb").write(bytes(99))
""")
    found = (await session.code.diff(before)).result
    assert found["files"] == ["a\nb.txt", "n"]
    assert "+2" in found["diff"]
    assert "GIT binary patch" in found["diff"]
    trapped = await session.run("import os; os.path.exists('/tmp/trapped')")
    assert str(trapped) == "False"
    with pytest.raises(CodeOperationError) as raised:
        await session.code.diff("0" * 40)
    assert raised.value.code == "not_found"


async def test_a_policy_that_decides_by_the_code(broker: BrokerProcess, tmp_path: Path) -> None:
    """Where code is assessed no agent of the sandbox runs, and native, whose calls are, takes over."""
    (tmp_path / "calc.py").write_text("")
    calls = (ToolCall("run_command", {"command": "echo seen"}), ToolCall("nothing", 5))
    replies = iter([ModelReply(calls=calls), ModelReply("done")])
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(template="careful") as session,
    ):
        await session.code.upload(tmp_path)
        with pytest.raises(kernelbroker.SandboxSecurityError) as raised:
            await session.coding_agent.run("edit")
        run = session.coding_agent.run("edit", client=lambda _: next(replies), tests=False)
        seen = [event async for event in run if event.type == "observation"]
        result = await run
    assert raised.value.code == "policy_refused"
    assert "cannot be assessed" in str(result.fallback)
    assert [each.is_error for each in seen] == [False, True]
    assert "seen" in str(seen[0].content)
    assert "there is no tool nothing" in str(seen[1].content)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_tool_of_mcp(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """The tool reports what the agent does, and returns the diff."""
    reported: list[str] = []

    async def report(_: float, __: float | None, message: str | None) -> None:
        reported.append(message or "")

    async with connected(broker, path="/mcp/project") as mcp:
        answer = await mcp.call_tool(
            "run_coding_agent",
            {"task": "edit", "session_id": session.session_id, "tests": False},
            progress_callback=report,
        )
    assert not answer.is_error
    assert answer.structured_content is not None
    assert answer.structured_content["result"]["files"] == ["calc.py"]
    assert "+    return a + b" in answer.content[0].text
    assert "hello" in reported


async def test_a_disconnect_over_rest(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """The operation over REST is one JSON object, and takes only the known answers to a disconnect."""
    path = f"/api/v1/sessions/{session.session_id}/operations/run_coding_agent"
    status, answer = await call(broker, "POST", path, {"task": "edit", "tests": False})
    assert status == 200
    assert answer["result"]["agent"] == "claude-code"
    assert answer["result"]["files"] == ["calc.py"]
    status, answer = await call(broker, "POST", path, {"task": "a", "on_disconnect": "x"})
    assert status == 400
    assert "on_disconnect" in answer["error"]["message"]
