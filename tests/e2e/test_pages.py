"""The programs and commands of the pages that newcomers follow, on a real broker, as they stand there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kernelbroker
import nbformat
import pytest

from tests.e2e.support import DEADLINE_S, ROOT, BrokerProcess, running_broker, whole_system
from tests.support.documentation import Block, blocks_of, fragment, run_fragment

pytestmark = whole_system

FOLLOWED = [
    "start.md",
    "zh/start.md",
    "guides/agent-author.md",
    "guides/data-team.md",
    "guides/operator.md",
]
"""Pages whose blocks are run one after the other, as their reader does."""
PROGRAMS = [
    block for page in FOLLOWED for block in blocks_of(page) if block.kind in ("python", "sh")
]
SHOWN_ADDRESS = "http://127.0.0.1:8720"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker with a template that asks before it runs risky code."""
    careful = {
        "TEMPLATES__CAREFUL__POLICY": "confirm",
        "TEMPLATES__CAREFUL__POLICY_THRESHOLD": "medium",
        "TEMPLATES__CAREFUL__POOL__MIN_SIZE": 0,
    }
    with running_broker(POOL__MIN_SIZE=1, POOL__MAX_SIZE=8, **careful) as broker:
        yield broker


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the pages speak of: the environment, a notebook, the operator's settings."""
    directory = tmp_path_factory.mktemp("home")
    (directory / ".venv").symlink_to(sys.prefix)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("6 * 7")])
    nbformat.write(notebook, directory / "analysis.ipynb")
    (settings,) = [block for block in blocks_of("guides/operator.md") if block.kind == "toml"]
    (directory / "kernelbroker.toml").write_text(
        settings.text.replace("/etc/kernelbroker/", f"{directory}/")
    )
    return directory


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_the_reader_s_programs(block: Block, broker: BrokerProcess, home: Path) -> None:
    """Each program and command works as it stands, and prints what stands below it."""
    text = block.text.replace(SHOWN_ADDRESS, broker.url)
    text = text.replace("/etc/kernelbroker.toml", str(home / "kernelbroker.toml"))
    if text.startswith("make "):  # what it does is done: the broker runs; the targets must exist
        command = ["make", "--dry-run", "--directory", str(ROOT), *text.split()[1:]]
    elif block.kind == "sh":
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", text]
    environ = broker.client_environ
    done = subprocess.run(
        command,
        env=environ
        | {
            "TOKEN": broker.token,
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
        },
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if block.printed is not None:
        assert done.stdout == block.printed, done.stderr


def test_the_commands_have_done_what_the_guides_say(home: Path) -> None:
    """The notebook has its output, and the operator's file the two tokens."""
    (cell,) = nbformat.read(home / "done.ipynb", 4).cells
    assert cell.outputs[0]["data"]["text/plain"] == "42"
    assert "acme" in json.dumps(json.loads((home / "tokens.json").read_text()))


@pytest.fixture
async def names(
    client: kernelbroker.Broker, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess
) -> AsyncIterator[dict[str, Any]]:
    """What fragments use: a broker and a session, as docs/sdk.md says."""
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", broker.token)
    async with client.session() as session:
        await session.files.write("sales.csv", "month,total\n1,20\n")
        yield {"kernelbroker": kernelbroker, "broker": client, "session": session}


async def test_a_context(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """api.md: a context in another language shares the files of its session."""
    await run_fragment(fragment("api.md", "session.context"), names)
    assert (await names["broker"].health())["status"] == "ok"
    assert capsys.readouterr().err == ""


async def test_checkpoints(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """checkpoints.md: a session is saved, and others begin with it."""
    text = fragment("checkpoints.md", 'checkpoint("prepared")')
    async with names["broker"].session(workspace="sold") as first:
        await first.files.write("sales.csv", "month,total\n1,20\n")
    text = text.replace("broker.session() as", "broker.session(workspace='sold') as")
    await run_fragment(text, names)
    assert capsys.readouterr().out == "[]\n[]\n"


async def test_confirming(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """risk.md: code that waits for a confirmation runs when the person says so."""
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")
    async with names["broker"].session(template="careful") as session:
        names |= {"session": session, "code": "import os; os.system('rm -rf /tmp/none')"}
        await run_fragment(fragment("risk.md", "ConfirmationRequired"), names)
        assert names["result"].success
    assert "os.system" in capsys.readouterr().out


async def test_assessing(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """risk.md: an action is assessed without a broker."""
    await run_fragment(fragment("risk.md", "UnifiedRiskPolicy"), names)
    assert len(capsys.readouterr().out.splitlines()) == 3


async def test_files_of_the_machine(names: dict[str, Any], broker: BrokerProcess) -> None:
    """workspaces.md: an application beside the broker uses the files of a workspace."""
    text = fragment("workspaces.md", "pathlib").replace("/srv/kernelbroker", str(broker.data_dir))
    await run_fragment(text, names)
    assert names["result"].startswith(b"PAR1")


async def test_routing(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """templates.md: each cell runs in the sandbox that it needs, and the result says in which."""
    await run_fragment(fragment("templates.md", 'template="auto"'), names)
    assert names["result"].success
    assert capsys.readouterr().out.startswith(f"{names['result'].sandbox} ")
