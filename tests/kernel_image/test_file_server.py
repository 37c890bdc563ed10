"""The workspace's files over HTTP: which requests are accepted. `tests/security` has the rest."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import kernelbroker_kernel
import pytest

from tests.support.requires import KERNEL_PYTHON, requires

PACKAGE = Path(kernelbroker_kernel.__file__).parent
PUT_FILES = """
import asyncio, sys
from kernelbroker_kernel import environment, file_server
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

environment.WORKSPACE = sys.argv[1]

async def main():
    server = HTTPServer(Application(file_server.ROUTES, kg_auth_token="right"))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}{file_server.FILES_PATH}"
    for token in ("wrong", "right"):
        for name, size in (("small", 5), ("large", file_server.LARGE_BYTES)):
            answer = await AsyncHTTPClient(force_instance=True).fetch(
                f"{url}/{token}-{name}", method="PUT", body=bytes(size), raise_error=False,
                headers={"Authorization": f"token {token}"},
            )
            print(token, name, answer.code)

asyncio.run(main())
"""


@pytest.mark.slow
@requires("the kernels' environment")
def test_an_upload_needs_the_token(tmp_path: Path) -> None:
    """An upload of any size without the token is answered with 401, and leaves no file."""
    done = subprocess.run(
        [KERNEL_PYTHON, "-c", PUT_FILES, tmp_path],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = ["wrong small 401", "wrong large 401", "right small 204", "right large 204"]
    assert done.stdout.splitlines() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right-large", "right-small"]


def test_no_private_names_of_tornado() -> None:
    """The handlers use only public names of their base classes."""
    tree = ast.parse((PACKAGE / "file_server.py").read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in names if name.startswith("_")} == set()
