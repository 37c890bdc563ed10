"""The operator's model for analyses, and long analyses as tasks."""

from __future__ import annotations

from typing import Any

import pytest
from kernelbroker.analysis.models import ask
from kernelbroker_kernel.contract import REPORT_CODE, REPORT_MIME
from kernelbroker_server.mcp.analysis_model import load_model
from kernelbroker_server.mcp.tasks import EXTENSION

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.mcp import mcp_api
from tests.support.world import Breakpoint

KNOWS: dict[str, Any] = {"extensions": {EXTENSION: {}}}
TABLE = {"name": "a", "rows": 2, "width": 1, "columns": ["n"], "dtypes": ["int64"], "head": []}
FRAME = {"rows": 2, "width": 1, "columns": ["n"], "data": [{"n": 1}, {"n": 2}]}


async def test_the_models_that_an_operator_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module and the vendors' clients are models; other texts are refused."""
    assert load_model(None) is None
    assert await ask(load_model("textwrap:dedent"), "  x") == "x\n"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert callable(load_model("anthropic:m"))
    for wrong in ("nowhere.at.all:f", "textwrap:nothing", "textwrap:__all__"):
        with pytest.raises(ValueError, match="gives no model"):
            load_model(wrong)


@pytest.mark.parametrize("code", ["def analyze(df): return df", None], ids=["code", "usual"])
async def test_a_long_analysis_is_a_task(backend: FakeBackend, code: str | None) -> None:
    """The answer comes soon. In the end the task has the analysis, and no cell has run twice."""
    point = Breakpoint()
    values = iter([{"tables": [TABLE]}, {"frame": FRAME}])

    async def reports(cell: Cell) -> None:
        value = next(values)
        if "frame" in value:
            await point(cell)
        cell.display({REPORT_MIME: {"return_value": value}})

    backend.scripts[REPORT_CODE] = reports
    async with mcp_api(backend, task_after=0.05) as api:
        arguments = {"file_path": "uploads/a.csv", "analysis_type": "trend", "code": code}
        params = {"name": "analyze_data", "arguments": arguments}
        task = (await api.post("tools/call", params, KNOWS))["result"]
        assert (task["resultType"], task["status"]) == ("task", "working")
        await api.restart()
        point.go_on.set()
        state = {"status": "working"}
        while state["status"] == "working":
            state = (await api.post("tasks/get", {"taskId": task["taskId"]}, KNOWS))["result"]
        assert state["status"] == "completed"
        found = state["result"]["structuredContent"]
        assert found["dataframe"]["shape"] == "2 rows × 1 column"
        assert (found["success"], found["data"]) == (True, FRAME["data"])
        (session,) = api.world.registry.list()
        assert found["session_id"] == session.id
        assert next(values, None) is None
