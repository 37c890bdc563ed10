"""A whole broker whose sandboxes are containers, as a client over REST sees it."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kernelbroker_server.app import Broker
from kernelbroker_server.config import Settings
from kernelbroker_server.config_sections import DockerSettings, PackageSettings
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from tests.backends.probes import containers_of
from tests.e2e.support import STORE
from tests.support.requires import IMAGE, requires
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.sandbox, requires("docker")]

DEADLINE_S = 60.0


class Client:
    """One session of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._http = SimpleAsyncHTTPClient(force_instance=True)

    async def call(self, method: str, path: str, body: object = None) -> Any:
        answer = await self._http.fetch(
            self._broker.url + path,
            method=method,
            headers={"Authorization": f"Bearer {self._broker.token}", "Accept": "application/json"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,
            request_timeout=DEADLINE_S,
            raise_error=False,
        )
        assert answer.code < 400, answer.body
        return json.loads(answer.body or b"null")

    async def run(self, code: str, **options: Any) -> Any:
        cell = {"code": code, "session_id": "one", "timeout": 20, **options}
        return await self.call("POST", "/api/v1/exec", cell)

    def close(self) -> None:
        self._http.close()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run, wheels = (Path(directory, name) for name in ("data", "run", "wheels"))
        wheels.mkdir(mode=0o755)
        make_wheel(wheels, "firstmade", "1.0")
        settings = Settings(
            port=0,
            backend="docker",
            docker=DockerSettings(image=IMAGE, runtime="runc", data_dir=data, run_dir=run),
            # Tables, as in a file: what templates take over from them.
            pool={"min_size": 1, "max_size": 2, "acquire_timeout": DEADLINE_S},  # type: ignore[arg-type]
            sandbox={"memory": "600MiB"},  # type: ignore[arg-type]
            packages=PackageSettings(wheels=wheels),
        )
        broker = Broker(settings)
        await broker.start()
        client = Client(broker)
        try:
            yield client
        finally:
            client.close()
            await broker.stop()
            assert containers_of(data) == []
            assert {path.name for path in data.iterdir()} <= set(STORE)
            assert list(run.iterdir()) == []


async def test_a_session_in_a_container(client: Client) -> None:
    """Cells, tables, plots, files, deaths and restarts are as they are in a jail."""
    health = await client.call("GET", "/health")
    assert health["isolation"] == "container"
    assert health["backend"]["runtime"] == "runc"

    hello = await client.run("x = 41\nprint('hello')")
    assert hello["stdout"] == "hello\n"
    source = "import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); df.to_csv('t.csv')"
    table = (await client.run(source, result_var="df"))["result"]
    assert table["dataframe"]["shape"] == [2, 1]
    assert [file["path"] for file in table["files"]] == ["t.csv"]
    plot = await client.run("import matplotlib.pyplot as plt; plt.plot([1, x]); plt.show()")
    (image,) = plot["images"]
    assert base64.b64decode(image["content"]).startswith(b"\x89PNG")

    hog = (await client.run("held = bytearray(2 << 30)"))["result"]
    assert hog["error_detail"]["cause"] == "out_of_memory"
    listing = "import os; names = os.listdir('/data')"
    after = (await client.run(listing, result_var="names"))["result"]
    assert after["return_value"] == ["t.csv"]

    death = (await client.run("import os; os._exit(7)"))["result"]
    assert death["error_detail"]["cause"] == "kernel_died"
    await client.run("y = 1")
    await client.call("POST", "/api/v1/sessions/one/restart", {})
    fresh = (await client.run("y"))["result"]
    assert fresh["error"] == "NameError: name 'y' is not defined"
    await client.call("DELETE", "/api/v1/sessions/one")


async def test_tables_and_packages(client: Client) -> None:
    """A container sends whole tables, and installs wheels that stay when its kernel is replaced."""
    await client.run("import pandas as pd; df = pd.DataFrame({'a': [1, 2]})")
    path = "/api/v1/sessions/one"
    assert await client.call("GET", f"{path}/variables/df?format=json") == [{"a": 1}, {"a": 2}]
    variables = (await client.call("GET", f"{path}/variables"))["variables"]
    assert variables == [{"name": "df", "type": "DataFrame", "shape": [2, 1]}]
    installed = await client.call("POST", f"{path}/packages", {"packages": ["firstmade"]})
    assert installed["result"]["success"], installed
    await client.call("POST", f"{path}/restart", {})
    imported = await client.run("import firstmade; v = firstmade.VERSION", result_var="v")
    assert imported["result"]["return_value"] == "1.0", imported


async def test_locales(client: Client) -> None:
    """Numbers and dates can be formatted for these languages."""
    code = """
import locale
found = [locale.setlocale(locale.LC_ALL, name) and locale.format_string("%.1f", 1.5)
         for name in ("en_US.UTF-8", "zh_CN.UTF-8", "de_DE.UTF-8")]"""
    result = (await client.run(code, result_var="found"))["result"]
    assert result["return_value"] == ["1.5", "1.5", "1,5"], result["error"]


async def test_javascript_and_prepared_files(client: Client) -> None:
    """A container has Node.js, files that were there before it, a layout, and the session's own limit."""
    await client.call("PUT", "/api/v1/workspaces/prepared", {"layout": "agent"})
    options = {
        "session_id": "one",
        "workspace": "prepared",
        "layout": "analysis",
        "limits": {"memory": 400 * 2**20},
    }
    await client.call("POST", "/api/v1/sessions", options)
    result = await client.run("console.log(6 * 7, process.version)", language="javascript")
    assert result["stdout"].startswith("42 v24."), result
    code = (
        "import os, pathlib; print(sorted(os.listdir('/data')))\n"
        "_ = pathlib.Path('/data/.memory/progress.md').open('a').write('- begun')\n"
        "_ = pathlib.Path('/data/code/a.py').write_text('1')"
    )
    result = await client.run(code)
    assert result["result"]["success"], result
    names = [".memory", "artifacts", "code", "data", "output", "outputs", "temp", "uploads"]
    assert result["stdout"] == f"{names}\n"
    listed = await client.call("GET", "/api/v1/workspaces/prepared/files?path=code")
    assert [each["path"] for each in listed["entries"]] == ["code/a.py"]
    result = await client.run("x = bytes(b'x') * (600 << 20)")
    assert result["result"]["error_detail"]["cause"] == "out_of_memory", result
