"""Sandboxes of a real broker behind the ports for programs that embed them."""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import (
    CodeOperationError,
    CodeOperationValidationError,
    SandboxConnectionError,
    SandboxSecurityError,
    SandboxTimeoutError,
)
from kernelbroker.ports import (
    BrokerSandboxes,
    CodeOperationRequest,
    CreateSandbox,
    ExecuteCodeOperation,
    OperationType,
    SandboxConfig,
    SandboxInstance,
    SandboxStatus,
)

from tests.e2e.support import BrokerProcess, call, whole_system
from tests.support.requires import requires

pytestmark = [*whole_system, requires("git", "ripgrep", "control groups")]

CONFIG = SandboxConfig("default", "", timeout_seconds=60)
FILES = {
    "half.py": "def half(n):\n    return n / 2\n",
    "test_half.py": "from half import half\n\n\ndef test_half():\n    assert half(3) == 1\n",
    "Makefile": "all:\n\t@echo built\n",
}


def make_project(root: Path) -> Path:
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


@pytest.fixture
async def sandboxes(client: kernelbroker.Broker) -> AsyncIterator[BrokerSandboxes]:
    async with BrokerSandboxes(client) as sandboxes:
        yield sandboxes


@pytest.fixture
async def sandbox(sandboxes: BrokerSandboxes, tmp_path: Path) -> AsyncIterator[SandboxInstance]:
    project = make_project(tmp_path / "project")
    sandbox = await CreateSandbox(sandboxes)(str(project), CONFIG)
    yield sandbox
    await sandboxes.terminate_sandbox(sandbox.id)


async def test_the_life_of_a_sandbox(
    broker: BrokerProcess, sandboxes: BrokerSandboxes, sandbox: SandboxInstance
) -> None:
    """A sandbox is created, used, found by another program, and terminated once."""
    assert sandbox.status is SandboxStatus.RUNNING
    assert sandbox.endpoint == f"{broker.url}/api/v1/sessions/{sandbox.id}"
    execute = ExecuteCodeOperation(sandboxes)

    async def ask(operation: str, **parameters: object) -> kernelbroker.CodeOperationResponse:
        return await execute(CodeOperationRequest(sandbox.id, operation, parameters))

    read = await ask(OperationType.READ, path="half.py")
    assert "return n / 2" in read.result["content"]
    tested = await ask(OperationType.TEST)
    assert (tested.success, tested.result["failed"], tested.code) == (False, 1, "failed")
    edited = await ask(OperationType.EDIT, path="half.py", old="n / 2", new="n // 2")
    assert "+    return n // 2" in edited.result["diff"]
    assert (await ask("build")).result["command"] == "make"
    assert (await ask("run", command="git init -q .")).success
    committed = await ask(OperationType.GIT_COMMIT, message="half: whole numbers")
    assert sorted(committed.result["files"]) == sorted(FILES)
    request = CodeOperationRequest(sandbox.id, OperationType.TEST)
    events = [event async for event in sandboxes.stream_operation(request)]
    assert "test_output" in {event["type"] for event in events}
    assert events[-1]["type"] == "result"
    assert events[-1]["result"]["passed"] == 1

    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        BrokerSandboxes(client) as others,
    ):
        found = await others.get_sandbox(sandbox.id)
        assert found is not None
        assert (found.config, found.project_path) == (CONFIG, sandbox.project_path)
        assert [each.id for each in await others.list_sandboxes()] == [sandbox.id]
        searched = await others.execute_operation(
            CodeOperationRequest(sandbox.id, "search", {"pattern": "n // 2"})
        )
        assert searched.result["matches"][0]["path"] == "half.py"
        assert await others.terminate_sandbox(sandbox.id) is True
        ended = await others.get_sandbox(sandbox.id)
        assert ended is not None
        assert ended.status is SandboxStatus.TERMINATED
        assert ended.terminated_at is not None
        assert await others.terminate_sandbox(sandbox.id) is False
        assert await others.list_sandboxes() == []
    assert (await ask("read", path="half.py")).code == "not_found"
    with pytest.raises(CodeOperationError) as caught:
        await sandboxes.execute_operation(request)
    assert (caught.value.sandbox_id, caught.value.code) == (sandbox.id, "session_gone")
    assert (await call(broker, "GET", f"/api/v1/sessions/{sandbox.id}"))[0] == 410


async def test_errors_of_operations(sandboxes: BrokerSandboxes, sandbox: SandboxInstance) -> None:
    """Refusals are errors of their kind, and the timeout of the configuration holds."""

    async def ask(operation: str, **parameters: object) -> None:
        await sandboxes.execute_operation(CodeOperationRequest(sandbox.id, operation, parameters))

    with pytest.raises(SandboxSecurityError):
        await ask("read", path="/etc/passwd")
    with pytest.raises(CodeOperationValidationError):
        await ask("read")
    with pytest.raises(CodeOperationError, match="no operation") as caught:
        await ask("fly")
    assert (caught.value.operation, caught.value.code) == ("fly", "not_found")
    with pytest.raises(SandboxTimeoutError):
        await ask("run", command="sleep 60", timeout=0.5)
    with pytest.raises(CodeOperationValidationError, match="timeout is at most 60"):
        await ask("run", command="true", timeout=61)
    request = CodeOperationRequest("unknown", "read", {"path": "half.py"})
    with pytest.raises(CodeOperationError) as caught:
        await sandboxes.execute_operation(request)
    assert caught.value.code == "not_found"


async def test_what_cannot_be_created(
    client: kernelbroker.Broker, sandboxes: BrokerSandboxes, tmp_path: Path
) -> None:
    """A sandbox without a project, a template or a broker is an error, and no session is left."""
    project = str(make_project(tmp_path / "project"))
    with pytest.raises(CodeOperationValidationError, match="no such directory"):
        await sandboxes.create_sandbox(str(tmp_path / "missing"), CONFIG)
    with pytest.raises(CodeOperationValidationError, match="template"):
        await sandboxes.create_sandbox(project, SandboxConfig("unknown", ""))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(CodeOperationError):
        await sandboxes.create_sandbox(str(tmp_path / "text"), CONFIG)
    assert await sandboxes.list_sandboxes() == []
    ordinary = await client.session().open()
    assert await sandboxes.get_sandbox(ordinary.session_id) is None
    assert await sandboxes.terminate_sandbox(ordinary.session_id) is False
    with pytest.raises(CodeOperationError, match="no sandbox"):
        await sandboxes.execute_operation(CodeOperationRequest(ordinary.session_id, "git_status"))
    nobody = kernelbroker.connect("http://127.0.0.1:9", "none", timeout=2)
    with pytest.raises(SandboxConnectionError):
        await BrokerSandboxes(nobody).list_sandboxes()


async def test_limits_hold(sandboxes: BrokerSandboxes, tmp_path: Path) -> None:
    """The processors, the memory and the network of a sandbox are those of its configuration."""
    project = str(make_project(tmp_path / "project"))
    config = SandboxConfig("default", "", cpu_limit="200m", memory_limit="300M")
    sandbox = await sandboxes.create_sandbox(project, config)
    command = "python3 -c 'x = bytes(b\"x\") * (600 << 20); print(len(x))'"
    ran = await sandboxes.execute_operation(
        CodeOperationRequest(sandbox.id, "run", {"command": command})
    )
    assert not ran.success
    burn = "import time; t = time.process_time(); a = time.monotonic()\n"
    burn += "while time.monotonic() - a < 2: pass\nprint(time.process_time() - t)"
    ran = await sandboxes.execute_operation(
        CodeOperationRequest(sandbox.id, "run", {"command": f"python3 -c '{burn}'"})
    )
    assert float(ran.stdout) < 1.0, ran.stderr
    assert await sandboxes.terminate_sandbox(sandbox.id)


async def test_the_example_of_the_page(broker: BrokerProcess, tmp_path: Path) -> None:
    """The program of docs/embedding.md runs the tests of a project."""
    page = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    project = make_project(tmp_path / "project")
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, project), env=broker.client_environ, stdout=-1, stderr=-1
    )
    out, err = await running.communicate()
    lines = out.decode().splitlines()
    assert lines[:3] == ["pending", "in_progress", "failed"], err.decode()
    assert lines[3].startswith("False ")


async def test_the_example_of_events(client: kernelbroker.Broker) -> None:
    """The program of docs/session-events.md prints the events in order."""
    page = (Path(__file__).parents[2] / "docs" / "session-events.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed: list[str] = []
    names = {"broker": client, "print": lambda *each: printed.append(" ".join(map(str, each)))}
    exec(f"async def main():\n{textwrap.indent(program, '    ')}", names)
    await names["main"]()  # type: ignore[operator]
    assert printed == ["1 sandbox_created", "2 sandbox_ready", "3 plan", "4 step_start"]
