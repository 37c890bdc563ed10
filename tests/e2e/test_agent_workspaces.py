"""Workspaces for agents: files before, between and after sessions, layouts, and lower limits."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import AgentWorkspace, SandboxLimits

from tests.e2e.support import BrokerProcess, call, running_broker, until, whole_system
from tests.support.requires import requires
from tests.support.results import cause_of

pytestmark = whole_system

MIB = 2**20
AGENT = ["artifacts", "code", "data", "output", "temp"]
NOTES = [".memory/findings.md", ".memory/progress.md", ".memory/task_plan.md"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o755)
    for parent in list(shared.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    return shared


@pytest.fixture(scope="module")
def broker(shared: Path) -> Iterator[BrokerProcess]:
    """One with shared data."""
    settings = {"POOL__MIN_SIZE": 2, "SANDBOX__SHARED_DATA": shared, "SANDBOX__MEMORY": "1GiB"}
    with running_broker(**settings) as broker:
        yield broker


@pytest.fixture
async def workspace(client: kernelbroker.Broker) -> AsyncIterator[AgentWorkspace]:
    workspace = AgentWorkspace("mine", client)
    yield workspace
    await workspace.cleanup()


async def test_an_agent_runs_and_reads_in_turns(
    client: kernelbroker.Broker, workspace: AgentWorkspace
) -> None:
    """The same calls work before, during and after a session, and both sides see all files."""
    assert await workspace.list_files() == []
    assert await workspace.list_files("nothing") == []
    await workspace.write_file("in/sales.csv", "month,total\n1,20\n")
    await workspace.write_file("in/raw.bin", b"\x00\xff")
    async with client.session(workspace="mine") as session:
        result = await session.run(
            "print(open('in/sales.csv').read()); open('in/raw.bin', 'ab').write(b'!')"
        )
        assert result.success, result.error
        assert result.stdout == "month,total\n1,20\n\n"
        await workspace.write_file("in/late/more.txt", "more")
        result = await session.run(
            "open('out.txt', 'w').write(open('in/late/more.txt').read() * 2)"
        )
        assert result.success, result.error
        assert await workspace.read_file("out.txt") == b"moremore"
        assert await workspace.list_files() == [
            "in/late/more.txt",
            "in/raw.bin",
            "in/sales.csv",
            "out.txt",
        ]
        with pytest.raises(kernelbroker.Conflict, match=session.session_id):
            await workspace.cleanup()
        reads = asyncio.gather(*(workspace.read_file("in/raw.bin") for _ in range(5)))
    assert await reads == [b"\x00\xff!"] * 5
    assert await workspace.list_files("in") == ["in/late/more.txt", "in/raw.bin", "in/sales.csv"]
    assert await workspace.list_files("in/raw.bin") == ["in/raw.bin"]
    await workspace.delete_file("in")
    assert await workspace.list_files() == ["out.txt"]
    await workspace.cleanup()
    await workspace.cleanup()
    assert await workspace.list_files() == []
    with pytest.raises(kernelbroker.NotFound):
        await workspace.read_file("out.txt")


async def test_reads_while_the_session_closes(
    client: kernelbroker.Broker, workspace: AgentWorkspace
) -> None:
    """Whoever reads a file while its session is closed gets the file, from wherever it is then."""
    content = b"x" * 100_000
    await workspace.write_file("large", content)
    for _ in range(10):
        async with client.session(workspace="mine") as session:
            assert (await session.run("1")).success
            reads = [asyncio.create_task(workspace.read_file("large")) for _ in range(6)]
            await asyncio.sleep(0)
        assert await asyncio.gather(*reads) == [content] * 6


async def test_garbage_is_refused(client: kernelbroker.Broker, workspace: AgentWorkspace) -> None:
    """Names and paths out of the workspace, links of user code, and files that do not fit are refused."""
    for name in ("", "..", ".hidden", "a/b", "x" * 65):
        with pytest.raises(ValueError, match="name of a workspace"):
            AgentWorkspace(name, client)
    with pytest.raises(ValueError, match="layout"):
        AgentWorkspace("mine", client, layout="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_size_mb"):
        AgentWorkspace("mine", client, max_size_mb=0)
    for path in ("../x", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(kernelbroker.BadRequest):
            await workspace.write_file(path, "x")
        with pytest.raises(kernelbroker.BadRequest):
            await workspace.read_file(path)
    for path in ("../x", "/etc/passwd"):
        with pytest.raises(kernelbroker.BadRequest):
            workspace.get_container_path(path)
        with pytest.raises(kernelbroker.BadRequest):
            await workspace.get_host_path(path)
    async with client.session(workspace="mine") as session:
        code = "import os; os.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'passwd')"
        assert (await session.run(code)).success
        for path in ("etc/passwd", "passwd"):
            with pytest.raises(kernelbroker.Conflict):
                await workspace.read_file(path)
    for path in ("etc/passwd", "passwd"):
        with pytest.raises(kernelbroker.Conflict):
            await workspace.read_file(path)
    with pytest.raises(kernelbroker.Conflict):
        await workspace.write_file("etc/new", "x")
    assert not Path("/etc/new").exists()


async def test_a_workspace_has_a_size_and_an_age_of_its_own(client: kernelbroker.Broker) -> None:
    """`max_size_mb` bounds uploads and cells, `ttl_hours` says when it is removed."""
    workspace = AgentWorkspace("small", client, max_size_mb=2, ttl_hours=1)
    await workspace.write_file("half", bytes(MIB))
    with pytest.raises(kernelbroker.TooLarge, match="limit is 2 MiB"):
        await workspace.write_file("other", bytes(2 * MIB))
    async with client.session(workspace="small") as session:
        with pytest.raises(kernelbroker.TooLarge):
            await workspace.write_file("other", bytes(2 * MIB))
        result = await session.run("_ = open('large', 'wb').write(bytes(9 << 20))")
        assert "QuotaExceeded: the workspace holds 10 MiB, its limit is 2 MiB" in result.stderr

    async def found() -> kernelbroker.WorkspaceInfo | None:
        (info,) = [each for each in await client.workspaces() if each.name == "small"]
        return info if info.expires_at is not None else None

    info = await until(found)
    assert 0 < (info.expires_at - info.last_used_at).total_seconds() <= 3600
    await workspace.cleanup()


async def test_paths(client: kernelbroker.Broker, workspace: AgentWorkspace) -> None:
    """The host path leads to the files, the mount has it, and the sandbox finds them at /data."""
    path = await workspace.get_host_path()
    assert list(path.iterdir()) == []
    (await workspace.get_host_path("direct.txt")).write_text("from the host")
    (path / "direct.txt").chmod(0o644)
    assert await workspace.read_file("direct.txt") == b"from the host"
    assert await workspace.get_volume_mount() == {str(path): {"bind": "/data", "mode": "rw"}}
    assert workspace.get_container_path() == "/data"
    inside = workspace.get_container_path("direct.txt")
    async with client.session(workspace="mine") as session:
        assert (await session.run(f"print(open({inside!r}).read())")).stdout == "from the host\n"
        await session.run("_ = open('made.txt', 'w').write('inside')")
        assert (await workspace.get_host_path("made.txt")).read_text() == "inside"


async def test_a_host_path_of_another_machine_raises(
    client: kernelbroker.Broker, workspace: AgentWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the broker is on another machine, or its files cannot be opened here, there is no path."""
    with monkeypatch.context() as patch:
        patch.setattr("kernelbroker.agent_workspace._this_machine", lambda: "another")
        for method in (workspace.get_host_path, workspace.get_volume_mount):
            with pytest.raises(kernelbroker.NotOnThisMachine, match="not on this machine"):
                await method()
    monkeypatch.setattr("kernelbroker.agent_workspace._can_be_opened", lambda _: False)
    with pytest.raises(kernelbroker.NotOnThisMachine, match="cannot be opened"):
        await workspace.get_host_path()


async def test_the_layout_of_an_agent(client: kernelbroker.Broker) -> None:
    """A session and a workspace get the layout where it is missing; notes that exist stay."""
    async with client.session(workspace="task", layout="agent", cwd="code") as session:
        result = await session.run(
            "import os; print(os.getcwd()); print(sorted(os.listdir('/data')))\n"
            "print(open('/data/.memory/task_plan.md').readline())\n"
            "_ = open('/data/.memory/progress.md', 'a').write('- begun\\n')\n"
            "os.rmdir('/data/temp')\n"
        )
        assert result.stdout.splitlines()[:3] == [
            "/data/code",
            str(sorted([".memory", *AGENT, "shared"])),
            "# Task Plan",
        ]
        await session.restart()
        assert (
            await session.run("import os; print(os.path.exists('/data/temp'))")
        ).stdout == "False\n"
        workspace = AgentWorkspace("task", client, layout="agent")
        assert await workspace.list_files(".memory") == NOTES
    async with AgentWorkspace("task", client, layout="agent") as workspace:
        path = await workspace.get_host_path()
        assert (path / "temp").is_dir()
        assert await workspace.read_file(".memory/progress.md") == b"# Progress\n- begun\n"
        assert (await workspace.read_file(".memory/findings.md")).startswith(b"# Findings")
    await workspace.cleanup()


async def test_the_layout_of_an_analysis(
    client: kernelbroker.Broker, broker: BrokerProcess, shared: Path
) -> None:
    """The layout of an analysis has its directories, over REST as well, and reads shared data."""
    assert sorted(path.name for path in shared.iterdir()) == ["datasets", "templates"]
    (shared / "datasets" / "cities.csv").write_text("Oslo\n")
    (shared / "datasets" / "cities.csv").chmod(0o644)
    body = {"session_id": "analysis", "layout": "analysis", "workspace_retention": 0}
    status, _ = await call(broker, "POST", "/api/v1/sessions", body)
    assert status == 201
    async with await client.attach("analysis", keep=False) as session:
        result = await session.run(
            "import os; print(sorted(os.listdir('.'))); print(open('shared/datasets/cities.csv').read())"
        )
        assert result.stdout == "['outputs', 'shared', 'temp', 'uploads']\nOslo\n\n"
        result = await session.run("open('shared/templates/x', 'w')")
        assert "Read-only file system" in str(result.error)
    status, answer = await call(broker, "POST", "/api/v1/sessions", {"layout": "other"})
    assert status == 400
    assert "layout" in answer["error"]["message"]


@requires("control groups")
async def test_a_session_can_have_less_memory(client: kernelbroker.Broker) -> None:
    """A cell over the session's own limit ends as out of memory; the limit can be changed."""
    limits = SandboxLimits(memory=300 * MIB)
    async with client.session(workspace_retention=0, limits=limits) as session:
        assert (await session.run("print(len(bytes(50 << 20)))")).stdout == "52428800\n"
        result = await session.run("x = bytes(b'x') * (400 << 20)")
        assert cause_of(result) == "out_of_memory", result.error
        result = await session.run(
            "x = bytes(b'x') * (400 << 20)"
        )  # the next sandbox has it as well
        assert cause_of(result) == "out_of_memory", result.error
        await session.update(limits=SandboxLimits(memory=600 * MIB))
        result = await session.run("x = bytes(b'x') * (400 << 20); print(len(x))")
        assert result.stdout == f"{400 * MIB}\n", result.error
        with pytest.raises(kernelbroker.BadRequest, match="uses"):
            await session.update(limits=SandboxLimits(memory=300 * MIB))
        await session.update(limits=SandboxLimits(memory=2**40))
        assert (await session.run("print(len(x))")).stdout == f"{400 * MIB}\n"
    with pytest.raises(kernelbroker.BadRequest, match="the sandbox uses"):
        await client.session(limits=SandboxLimits(memory=1000)).open()


async def test_a_session_can_have_less_output(client: kernelbroker.Broker) -> None:
    """Output beyond the session's own limit is cut and counted; a higher limit than the broker's is not."""
    async with client.session(
        workspace_retention=0, limits=SandboxLimits(output=10_000)
    ) as session:
        result = await session.run("print('x' * 50_000)")
        assert result.success
        assert len(result.stdout) < 10_000
        assert result.truncated is not None
        assert result.truncated.output_bytes == 50_001 - len(result.stdout)
        await session.update(limits=SandboxLimits(output=2**40))
        result = await session.run("print('x' * 50_000)")
        assert (len(result.stdout), result.truncated) == (50_001, None)
        result = await session.run("print('x' * 12_000_000)")
        assert result.truncated is not None


def test_without_await(broker: BrokerProcess) -> None:
    """`kernelbroker.sync` has the same workspace."""
    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        kernelbroker.sync.AgentWorkspace("plain", client, layout="agent") as workspace,
    ):
        workspace.write_file("code/a.py", "print(1)")
        assert workspace.read_file("code/a.py") == b"print(1)"
        assert workspace.list_files() == [*NOTES, "code/a.py"]
        assert (workspace.get_host_path() / "code/a.py").read_text() == "print(1)"
        assert workspace.get_volume_mount() == {
            str(workspace.get_host_path()): {"bind": "/data", "mode": "rw"}
        }
        assert workspace.get_container_path("code/a.py") == "/data/code/a.py"
        workspace.delete_file("code")
        workspace.cleanup()
        assert workspace.list_files() == []
