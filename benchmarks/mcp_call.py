"""Measures the MCP tool `run_code` with `1` in an open session, beside the SDK's cell in another one.

The client is that of the `mcp` SDK, over HTTP, in both eras of the protocol, and over standard input and
output of `kernelbroker mcp`. All sides take turns in blocks, so that other load affects all of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import httpx2
from figures import Target, arguments, median_ms, report
from kernelbroker_side import running_broker
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

BLOCK = 10
WARM_UP = 20
MOST_MS = 15.0
"""What a call may cost more than the SDK's cell."""

SDK, MODERN, LEGACY, STDIO = "SDK", "MCP 2026-07-28", "MCP 2025-11-25", "MCP over stdio"


@asynccontextmanager
async def over_http(url: str, token: str, mode: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(url: str, token: str) -> AsyncIterator[Client]:
    environ = {**os.environ, "KERNELBROKER_URL": url, "KERNELBROKER_TOKEN": token}
    command = ["-m", "kernelbroker.cli", "mcp"]
    server = StdioServerParameters(command=sys.executable, args=command, env=environ)
    async with Client(server, mode="2026-07-28") as client:
        yield client


async def tool(client: Client) -> Callable[[], Awaitable[None]]:
    """A function that runs `1` by the tool, in a session of its own."""
    opened = await client.call_tool("create_session", {})
    arguments = {"code": "1", "session_id": opened.structured_content["session_id"]}

    async def run() -> None:
        assert not (await client.call_tool("run_code", arguments)).is_error

    return run


async def measure(rounds: int) -> dict[str, list[float]]:
    async with running_broker(warm=4) as broker, broker.session() as session:
        token = broker._address.token
        assert token is not None
        async with (
            over_http(broker.url, token, "2026-07-28") as modern,
            over_http(broker.url, token, "legacy") as legacy,
            over_stdio(broker.url, token) as stdio,
        ):

            async def run_by_sdk() -> None:
                (await session.run("1")).raise_for_error()

            sides = {
                SDK: run_by_sdk,
                MODERN: await tool(modern),
                LEGACY: await tool(legacy),
                STDIO: await tool(stdio),
            }
            times: dict[str, list[float]] = {name: [] for name in sides}
            for run in sides.values():
                await _block(run, WARM_UP, [])
            for _ in range(rounds):
                for name, run in sides.items():
                    await _block(run, BLOCK, times[name])
            return times


async def _block(run: Callable[[], Awaitable[None]], count: int, times: list[float]) -> None:
    for _ in range(count):
        begin = perf_counter()
        await run()
        times.append(perf_counter() - begin)


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    times = asyncio.run(measure(options.rounds))
    medians = {name: median_ms(values) for name, values in times.items()}
    targets = [
        Target(f"{name} - SDK, medians in ms", medians[name] - medians[SDK], MOST_MS)
        for name in (MODERN, LEGACY)
    ]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
