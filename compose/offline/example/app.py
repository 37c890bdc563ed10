"""An application on the same machine: it runs code through the SDK, and through MCP as an agent would.

python3 -m venv env
env/bin/pip install --no-index --find-links wheels 'kernelbroker[pandas]' mcp
KERNELBROKER_URL=http://127.0.0.1:8720 KERNELBROKER_TOKEN=... env/bin/python example/app.py
"""

import asyncio
import os

import httpx2
import kernelbroker
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

URL = os.environ.get("KERNELBROKER_URL", "http://127.0.0.1:8720")
TOKEN = os.environ["KERNELBROKER_TOKEN"]

CELL = """
import pandas as pd
sales = pd.DataFrame({"city": ["Oslo", "Bern", "Oslo"], "amount": [10, 20, 5]})
totals = sales.groupby("city").amount.sum().to_frame()
"""


async def with_the_sdk() -> None:
    async with kernelbroker.connect(URL, TOKEN) as broker, broker.session() as session:
        result = await session.run(CELL, result_var="totals")
        assert result.success, result.error
        table = await session.table("totals")  # a DataFrame
        print("SDK:", table.to_dict()["amount"])


async def with_mcp() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    timeout = httpx2.Timeout(60)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        Client(streamable_http_client(f"{URL}/mcp", http_client=http)) as client,
    ):
        tools = await client.list_tools()
        assert "run_code" in [tool.name for tool in tools.tools]
        answer = await client.call_tool("run_code", {"code": "print(sum(range(10)))"})
        assert not answer.is_error, answer
        print("MCP:", answer.content[0].text.splitlines()[0])


async def main() -> None:
    await with_the_sdk()
    await with_mcp()


if __name__ == "__main__":
    asyncio.run(main())
