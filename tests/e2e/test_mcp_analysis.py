"""The MCP tools of the set `analysis`, with real kernels."""

from __future__ import annotations

from typing import Any

import kernelbroker
import pytest
from mcp_types import CreateMessageResult, ImageContent, TextContent

from tests.e2e.support import BrokerProcess, whole_system
from tests.e2e.test_mcp import call, connected
from tests.support.mcp import ERAS, Era, text_of

pytestmark = whole_system

CSV = "region,sales\nNorth,3\nSouth,4\nNorth,5\n"
FAILS = "def analyze(df):\n    return df['no_such_column']"
BY_REGION = "def analyze(df):\n    return df.groupby('region', as_index=False)['sales'].sum()"


@pytest.mark.parametrize("era", ERAS)
async def test_analyses(era: Era, broker: BrokerProcess) -> None:
    """A file is analysed without code and with code, and another one is made of it."""
    async with connected(broker, era) as client:
        written = await call(client, "write_file", path="uploads/sales.csv", content=CSV)
        here = {"session_id": written.structured_content["session_id"]}
        sales = {"file_path": "uploads/sales.csv", **here}

        found = await call(client, "analyze_data", analysis_type="distribution", **sales)
        assert "Half of the values of sales" in text_of(found)
        assert any(isinstance(each, ImageContent) for each in found.content)

        found = await call(client, "analyze_data", analysis_type="x", code=BY_REGION, **sales)
        structured: dict[str, Any] = found.structured_content
        assert structured["dataframe"]["shape"] == "2 rows × 2 columns"
        assert structured["data"][0] == {"region": "North", "sales": 8}
        assert "| North | 8 |" in text_of(found)
        assert structured["session_id"] == here["session_id"]

        failed = await call(
            client, "analyze_data", analysis_type="x", code="def analyze(df):\n    1 / 0", **sales
        )
        assert failed.is_error
        assert "line 2, in analyze" in failed.structured_content["error"]
        asked = await call(client, "analyze_data", analysis_type="which is best?", **sales)
        assert asked.is_error
        assert "def analyze(df):" in text_of(asked)

        code = "def operation(d, i, path):\n    d[0].to_parquet(path)"
        made = await call(
            client,
            "table_operation",
            instruction="convert",
            input_paths=["uploads/sales.csv"],
            output_path="a/sales.parquet",
            code=code,
            **here,
        )
        assert made.structured_content["output_path"] == "/data/outputs/a/sales.parquet"
        listed = await call(client, "list_files", path="outputs/a", **here)
        assert [each["path"] for each in listed.structured_content["entries"]] == [
            "outputs/a/sales.parquet"
        ]
        await call(client, "close_session", **here)


@pytest.mark.parametrize("era", ERAS)
async def test_the_clients_model_writes_the_code(era: Era, broker: BrokerProcess) -> None:
    """A client that lends its model is asked for code, and for a correction. No cell runs twice."""
    prompts = []
    answers = iter([FAILS, BY_REGION])

    async def sample(_context: Any, params: Any) -> CreateMessageResult:
        prompts.append(params.messages[0].content.text)
        content = TextContent(text=f"```python\n{next(answers)}\n```")
        return CreateMessageResult(role="assistant", content=content, model="m")

    async with (
        connected(broker, era, sampling_callback=sample) as client,
        kernelbroker.connect(broker.url, broker.token) as sdk,
    ):
        written = await call(client, "write_file", path="uploads/sales.csv", content=CSV)
        here = {"session_id": written.structured_content["session_id"]}
        found = await call(
            client,
            "analyze_data",
            file_path="uploads/sales.csv",
            analysis_type="custom",
            question="sales by region?",
            **here,
        )
        assert found.structured_content["data"][0] == {"region": "North", "sales": 8}
        assert len(prompts) == 2 and "sales by region?" in prompts[0]
        assert "no_such_column" in prompts[1]
        notebook = await sdk.notebook(here["session_id"])
        assert [FAILS in each["source"] for each in notebook["cells"]] == [False, True, False]
        await call(client, "close_session", **here)
