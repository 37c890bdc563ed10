"""The OpenAPI document: every route is described, and the broker behaves as documented."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from kernelbroker_kernel import contract
from kernelbroker_server.api.events import Events
from kernelbroker_server.api.openapi import methods_of
from kernelbroker_server.api.routes import ROUTES
from kernelbroker_server.api.websocket import SessionSocket
from kernelbroker_server.pool.state import PoolLimits

from tests.support.backend import FakeBackend
from tests.support.extent import WHOLE
from tests.support.gateway import Cell
from tests.support.http import TOKEN, Api, serving
from tests.support.world import world

_CONFIG = """
[checks.positive_data_acceptance]
# 400: a limit that the settings set. 410: closed meanwhile, by another of its own requests.
expected-statuses = ["2xx", "400", "401", "404", "409", "410", "429"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "404", "405", "409", "410"]
# Its body names the session, so that the execution of another one is not found.
[[operations]]
include-name = "POST /api/v1/executions/{execution_id}/stdin"
[operations.checks]
ensure_resource_availability.enabled = false
"""


async def test_every_method_is_described(api: Api) -> None:
    """The document describes each method of each path, except the WebSockets."""
    paths = (await api.ask("GET", "/api/v1/openapi.json")).json["paths"]
    for path, handler in ROUTES:
        if handler not in (SessionSocket, Events):
            assert sorted(paths[path]) == sorted(each.lower() for each in methods_of(handler))
            assert all(each["summary"] for each in paths[path].values())
    names = [each["operationId"] for path in paths.values() for each in path.values()]
    assert len(set(names)) == len(names)


async def test_the_allow_header_lists_documented_methods(api: Api) -> None:
    """The Allow header of a 405 lists the documented methods."""
    answer = await api.ask("PUT", "/api/v1/sessions/x")
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "GET, DELETE, PATCH"


async def no_variables(cell: Cell) -> None:
    """The internal cells of a session that holds nothing."""
    answer: dict[str, object] = {"variables": [], "dropped": 0, "saved": {}, "loaded": {}}
    asked = cell.metadata[contract.METADATA_KEY]
    if "save" in asked:
        cell.kernel.exports[asked["save"]["ticket"]] = b"the stream"
    if "export" in asked:
        answer = {"refused": {"code": "not_found", "message": "there is no such variable"}}
    cell.display({contract.INTERNAL_CELL_MIME: answer})


@pytest.mark.slow
async def test_answers_match_the_document(backend: FakeBackend, tmp_path: Path) -> None:
    """Answers to generated requests, valid and invalid, match the document."""
    backend.scripts[contract.INTERNAL_CELL_CODE] = no_variables
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CONFIG)
    options = {"config-file": config}
    options_of_run = {
        "seed": 1,
        "max-examples": 10 if WHOLE else 3,
        "phases": "examples,coverage,fuzzing,stateful" if WHOLE else "examples,fuzzing,stateful",
        "header": f"Authorization: Bearer {TOKEN}",
    }
    async with world(backend, pool=PoolLimits(1, 5_000)) as w, serving(w) as api:
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            *(f"--{name}={value}" for name, value in options.items()),
            "run",
            *(f"--{name}={value}" for name, value in options_of_run.items()),
            f"http://127.0.0.1:{api.port}/api/v1/openapi.json",
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
