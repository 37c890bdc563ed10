"""The clients of the README and the command line, with a broker that they find themselves."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import SandboxClient

from tests.e2e.support import DEADLINE_S, ROOT, BrokerProcess, whole_system

pytestmark = whole_system


@pytest.fixture
def found(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is found through its runtime file, as by any client of the same user."""
    for name in ("KERNELBROKER_URL", "KERNELBROKER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", str(broker.runtime_file))


async def test_the_quickstart_needs_no_settings(found: None) -> None:
    """The first lines of the README work without any setting."""
    async with kernelbroker.connect() as broker:
        result = await broker.run("print(1 + 1)")
        assert result.stdout == "2\n"
        async with broker.session() as session:
            lines = []
            async for event in session.stream("for i in range(3): print(i)"):
                if isinstance(event, kernelbroker.events.Stdout):
                    lines.append(event.content)
            assert "".join(lines) == "0\n1\n2\n"
            result = await session.run(
                "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})", result_var="df"
            )
            assert result.dataframe is not None
            assert str(result.dataframe).splitlines()[0].replace(" ", "") == "|a|"
            assert result.dataframe.preview_to_pandas()["a"].tolist() == [1, 2]
            with pytest.raises(kernelbroker.ExecutionFailed, match="ZeroDivisionError"):
                (await session.run("1 / 0")).raise_for_error()


def test_readme(broker: BrokerProcess, tmp_path: Path) -> None:
    """The README's program runs as it stands there, and prints what stands below it."""
    blocks = dict(
        re.findall(
            r"^```(python|text)\n(.*?)^```$",
            (ROOT / "README.md").read_text(),
            re.MULTILINE | re.DOTALL,
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", blocks["python"]],
        env=broker.client_environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == blocks["text"]


def test_sync(found: None) -> None:
    """The same without `await`."""
    with kernelbroker.sync.connect() as broker:
        assert broker.run("print(1 + 1)").stdout == "2\n"
        assert broker.health()["status"] == "ok"
        with broker.session() as session:
            said: list[str] = []
            result = session.run("x = 2; print('x')", result_var="x", on_stdout=said.append)
            assert (result.return_value, said) == (2, ["x\n"])
            answered = session.run("print(input('? '))", on_input=lambda prompt: "yes")
            assert answered.stdout == "yes\n"


async def test_sync_inside_a_loop(found: None) -> None:
    """The synchronous client works where a loop runs already, as in notebooks."""
    with kernelbroker.sync.connect() as broker:
        assert broker.pool_status()["total_containers"] > 0


async def test_sandbox_client_keeps_its_state(broker: BrokerProcess) -> None:
    """`SandboxClient` keeps its state, streams, and resets."""
    async with SandboxClient(broker.url, token=broker.token) as client:
        assert await client.health_check()
        assert (await client.execute("x = 1 + 1; print(x)")).stdout == "2\n"
        chunks = [chunk async for chunk in client.stream_execute("print(x)\nx")]
        # On a busy machine a print can be two chunks.
        assert [kind for kind, _ in groupby(chunks, key=lambda chunk: chunk.type)] == [
            "stdout",
            "display",
            "result",
        ]
        await client.reset()
        result = await client.execute("print(x)")
        assert result.error == "NameError: name 'x' is not defined"


async def command(
    broker: BrokerProcess, *args: str, stdin: bytes = b"", cwd: Path | None = None
) -> tuple[int | None, str, str]:
    """Run `kernelbroker ARGS` to its end: status, stdout, stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("kernelbroker")),
        *args,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=cwd,
        env=broker.client_environ,
    )
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate(stdin)
    return process.returncode, out.decode(), err.decode()


async def test_exec_takes_code_from_anywhere(
    broker: BrokerProcess, shared_id: str, tmp_path: Path
) -> None:
    """`kernelbroker exec` takes code as argument, from a file or stdin, and returns a status."""
    session = ("exec", "--session", shared_id)
    assert await command(broker, *session, "print(1 + 1)") == (0, "2\n", "")
    (tmp_path / "script.py").write_text("import sys\nprint('äö')\nprint('oops', file=sys.stderr)")
    file = str(tmp_path / "script.py")
    assert await command(broker, *session, "-f", file) == (0, "äö\n", "oops\n")
    assert await command(broker, *session, stdin=b"x = 6 * 7\nx") == (0, "42\n", "")
    status, out, err = await command(broker, *session, "print(x)\n1 / 0")
    assert (status, out) == (1, "42\n")
    assert "ZeroDivisionError: division by zero" in err
    status, out, err = await command(broker, *session, "--timeout", "0.3", "while True: pass")
    assert (status, out) == (124, "")
    assert "TimeoutError: the cell ran longer than 0.3 s" in err


async def test_exec_prints_tables_and_saves_pictures(
    broker: BrokerProcess, shared_id: str, tmp_path: Path
) -> None:
    """Tables are printed and pictures are saved."""
    code = "import pandas as pd\ndf = pd.DataFrame({'name': ['a', 'b'], 'n': [1, 22]})"
    session = ("exec", "--session", shared_id)
    status, out, err = await command(broker, *session, code, "--result-var", "df")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "df: 2 rows × 2 columns (pandas)"
    assert [cell.strip() for cell in out.splitlines()[4].strip("|").split("|")][-2:] == ["b", "22"]
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"
    status, out, err = await command(broker, *session, plot, cwd=tmp_path)
    assert status == 0
    assert (tmp_path / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = await command(broker, *session, "print(1)", "--json")
    assert [line.split(",")[0] for line in out.splitlines()] == [
        '{"type":"started"', '{"type":"stdout"', '{"type":"result"',
    ]  # fmt: skip


async def test_command_line_without_broker(broker: BrokerProcess) -> None:
    """If no broker answers, or it refuses, the status is 2 and the message has advice."""
    status, out, err = await command(broker, "--url", "http://127.0.0.1:9", "exec", "1")
    assert (status, out) == (2, "")
    assert "Is the broker running?" in err
    status, _, err = await command(broker, "exec", "1", "--timeout", "100000")
    assert status == 2
    assert "timeout is at most" in err
    status, out, _ = await command(broker, "health")
    assert (status, '"status": "ok"' in out) == (0, True)
