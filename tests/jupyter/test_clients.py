"""Other people's clients of Jupyter, unmodified, as installed from their registries."""

from __future__ import annotations

import asyncio
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import kernelbroker
import nbformat
import pytest

from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, call, whole_system
from tests.jupyter.support import SCRIPTS, kernel_of

pytestmark = [*whole_system, pytest.mark.timeout(300)]

DEADLINE_S = 200


async def run(broker: BrokerProcess, program: Path | str, *arguments: object, **env: str) -> str:
    """Run a program, which must succeed. Returns what it writes to standard output."""
    process = await asyncio.create_subprocess_exec(
        *map(str, (program, *arguments)),
        env={**os.environ, "URL": broker.url, "TOKEN": broker.token, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (output + errors).decode()[-4000:]
    return output.decode()


def python(clients: Path) -> Path:
    return clients / "env" / "bin" / "python"


def gateway(broker: BrokerProcess) -> dict[str, str]:
    """The environment of Jupyter's gateway client, which sends no token over its WebSocket."""
    return {"JUPYTER_GATEWAY_URL": f"{broker.url}/jupyter/t/{broker.token}"}


def notebook(path: Path, *codes: str) -> Path:
    """Write a notebook with these cells."""
    cells = [nbformat.v4.new_code_cell(code) for code in codes]
    cells[0].metadata["tags"] = ["parameters"]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), path)
    return path


def outputs(path: Path) -> list[Any]:
    """The outputs of a notebook's cells."""
    return [output for cell in nbformat.read(path, 4).cells for output in cell.outputs]


@pytest.mark.long
async def test_jupyter_kernel_test(broker: BrokerProcess, clients: Path) -> None:
    """The suite for kernels fails nowhere where it does not fail with ipykernel itself."""

    async def failures(**env: str) -> set[str]:
        process = await asyncio.create_subprocess_exec(
            *map(str, (python(clients), SCRIPTS / "conformance.py")),
            env={**os.environ, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert "Ran 12 tests" in output, output
        return set(re.findall(r"^(?:FAIL|ERROR): (.*)$", output, re.MULTILINE))

    ours = await failures(URL=broker.url, TOKEN=broker.token)
    assert not ours or ours <= await failures(URL="")


async def test_jupyter_kernel_client(
    broker: BrokerProcess, session: kernelbroker.Session, clients: Path
) -> None:
    """It starts, runs, lists and restarts a kernel of its own, and goes on with an agent's."""
    script = SCRIPTS / "kernel_client.py"
    for arguments in ((), (await kernel_of(broker, session.session_id),)):
        found = json.loads(await run(broker, python(clients), script, *arguments))
        assert (found["printed"], found["error"]) == ("hello\n", "error")
        assert "amount" in found["variables"]
        assert found["listed"] and found["alive"]
    told = await session.run("1 + 1")  # after the restart by the client of Jupyter
    assert (told.text.splitlines()[0], told.kernel_restarted) == ("2", True)


async def test_the_example_of_the_page(
    broker: BrokerProcess, clients: Path, tmp_path: Path
) -> None:
    """The program in docs/jupyter.md prints what the page says."""
    page = (Path(__file__).parents[2] / "docs" / "jupyter.md").read_text()
    (program,) = re.findall(r"^```python\n(# kernel\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "kernel.py"
    file.write_text(program)
    where = {"KERNELBROKER_URL": broker.url, "KERNELBROKER_TOKEN": broker.token}
    printed = await run(broker, python(clients), file, **where)
    assert printed.strip() == "ok 45" and f"It prints `{printed.strip()}`" in page


async def test_nbclient(broker: BrokerProcess, clients: Path, tmp_path: Path) -> None:
    """It runs a notebook through the gateway client, and stops at a cell that fails."""
    path = notebook(tmp_path / "a.ipynb", "x = 20", "print(x + 1)", "1/0", "'never'")
    await run(broker, python(clients), SCRIPTS / "nbclient_run.py", path, **gateway(broker))
    printed, error = outputs(path)
    assert printed.text == "21\n" and error.ename == "ZeroDivisionError"
    assert nbformat.read(path, 4).metadata["failed"] == "ZeroDivisionError"


async def test_nbconvert(broker: BrokerProcess, clients: Path, tmp_path: Path) -> None:
    """`nbconvert --execute` runs a notebook through the gateway client, with its plot."""
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);"
    path = notebook(tmp_path / "a.ipynb", plot, "6 * 7")
    command = [
        clients / "env" / "bin" / "jupyter-nbconvert",
        "--execute",
        "--to",
        "notebook",
        "--inplace",
    ]
    manager = "jupyter_server.gateway.managers.GatewayKernelManager"
    option = f"--ExecutePreprocessor.kernel_manager_class={manager}"
    await run(broker, *command, option, path, **gateway(broker))
    picture, value = outputs(path)
    assert "image/png" in picture.data and value.data["text/plain"] == "42"


async def test_papermill(broker: BrokerProcess, clients: Path, tmp_path: Path) -> None:
    """It runs a notebook with parameters through the gateway client."""
    path = notebook(tmp_path / "a.ipynb", "factor = 1", "print(factor * 14)")
    script = SCRIPTS / "papermill_run.py"
    await run(broker, python(clients), script, path, tmp_path / "b.ipynb", **gateway(broker))
    assert [each.text for each in outputs(tmp_path / "b.ipynb")] == ["42\n"]


async def test_jupyterlab_services(
    broker: BrokerProcess, session: kernelbroker.Session, clients: Path
) -> None:
    """The library of JupyterLab connects to an agent's kernel, and starts one of its own."""
    kernel_id = await kernel_of(broker, session.session_id)
    await session.run("amount = 20")
    arguments = (f"{broker.url}/jupyter", broker.token, kernel_id, "print(amount); amount")
    output = await run(broker, "node", clients / "services.mjs", *arguments)
    said = json.loads(output.splitlines()[-1])
    assert said["default"] == "python3" and kernel_id in said["running"]
    assert said["outputs"] == ["status", "execute_input", "stream", "execute_result", "status"]
    assert said["statuses"] == ["ok"] * 3 and said["found"] == ["a.ipynb"]
    assert said["moved"] == [["b.ipynb", True]] and said["refused"] == 403
    assert (await session.run("amount")).text == "20"


async def test_vscodes_calls(
    broker: BrokerProcess, session: kernelbroker.Session, clients: Path
) -> None:
    """What VS Code asks of a server that its user enters: an agent's kernel, and one of its own."""
    await session.run("amount = 20")
    kernel_id = await kernel_of(broker, session.session_id)
    arguments = (f"{broker.url}/jupyter", broker.token, kernel_id)
    said = json.loads(
        (await run(broker, "node", clients / "vscode.mjs", *arguments)).splitlines()[-1]
    )
    assert said["version"] and "python3" in said["specs"] and said["listed"]
    assert said["file"] in (404, 405), "it goes on without a file behind its notebook"
    assert said["agents"] == ["ok", "20\n"] and said["first"] == ["ok", "first\n"]
    assert said["silent"] == ["ok", ""] and said["completion"] is True
    assert said["interrupted"] == "error" and said["restarted"] == ["ok", "False\n"]
    assert kernel_id in said["left"], "the session of the agent stays"


async def test_one_session_in_all_clients(
    broker: BrokerProcess,
    session: kernelbroker.Session,
    clients: Path,
    e2b_clients: E2bClients,
    tmp_path: Path,
) -> None:
    """A session of the SDK is listed by E2B's client, which goes on in it, and opened in JupyterLab.

    There a person sees its variables and a plot, moves a slider, completes, inspects, and debugs a cell.
    """
    await session.run("import pandas as pd; cities = ['Oslo', 'Bern']; zebra_one = zebra_two = 1")
    made = "sales = pd.DataFrame({'city': cities, 'amount': [25, 20]}); len(sales)"
    listed, text = await asyncio.to_thread(
        e2b_clients.python,
        f"""
        from e2b_code_interpreter import Sandbox
        listed = [each.sandbox_id for each in Sandbox.list().next_items()]
        report({session.session_id!r} in listed,
               Sandbox.connect({session.session_id!r}).run_code({made!r}).text)
        """,
    )
    assert (listed, text) == (True, "2")
    widgets = tmp_path / "widgets.zip"
    with zipfile.ZipFile(widgets, "w") as archive:
        packages = next((clients / "env" / "lib").glob("python3.*")) / "site-packages"
        for path in (packages / "ipywidgets").rglob("*.py"):
            archive.write(path, path.relative_to(packages))
    await session.files.upload(widgets, "widgets.zip")
    cells = [
        "sales",
        "import matplotlib.pyplot as plt\nsales.plot.bar(x='city', figsize=(5, 2.4)); plt.show()",
        "import sys; sys.path.append('/data/widgets.zip')\n"
        "import ipywidgets\n"
        "ipywidgets.interactive(lambda level: print('moved to', level), level=(0, 9))",
        "mine = int(sales.amount.sum())",
    ]
    screenshot = tmp_path / "jupyter.png"
    arguments = (SCRIPTS / "lab.py", f"session-{session.session_id}", screenshot, *cells)
    said = json.loads(await run(broker, python(clients), *arguments))
    assert "Oslo" in said["texts"][0] and said["pictures"] == 1 and said["sliders"] == 1
    assert "moved to 5" in said["moved"] and "zip(*iterables" in said["inspected"]
    completed = " ".join(said["completed"])
    assert "zebra_one" in completed and "zebra_two" in completed
    assert said["stopped"] and "debugged 42" in said["debugged"]
    assert (await session.run("mine")).text == "45"
    executions = await session.executions()
    codes = [
        (await call(broker, "GET", f"/api/v1/executions/{each.execution_id}"))[1]["code"]
        for each in executions
    ]
    assert [code for code in codes if code in cells] == cells
    assert screenshot.stat().st_size > 10_000
    assert (await call(broker, "GET", f"/api/v1/sessions/{session.session_id}"))[0] == 200
