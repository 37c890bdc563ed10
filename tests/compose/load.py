"""Clients that go on while a broker is replaced: python load.py URL SESSIONS; ends when its input does.

Each session appends numbers to a list in its kernel, one in each cell. The last line of the output is JSON:
for each session how many cells it has run, whether the list is whole, and what went wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import kernelbroker

PATIENCE_S = 240.0


async def run(session: kernelbroker.Session, code: str) -> str:
    """Run a cell that may run twice, also if the broker is away meanwhile. Returns what it prints."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            result = await session.run(code, timeout=60)
        except (kernelbroker.KernelBrokerError, OSError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
            continue
        if not result.success:
            raise RuntimeError(f"{result.cause}: {result.error}")
        return result.stdout


async def count(broker: kernelbroker.Broker, name: str, ending: asyncio.Event) -> dict[str, Any]:
    session, number = broker.session(name), 0
    try:
        await run(session, "numbers = []")
        print(f"{name} runs", flush=True)
        while not ending.is_set():
            await run(session, f"if len(numbers) == {number}: numbers.append({number})")
            number += 1
        is_whole = await run(session, f"print(numbers == list(range({number})))") == "True\n"
    except Exception as exc:
        return {"cells": number, "is_whole": False, "problem": repr(exc)}
    return {"cells": number, "is_whole": is_whole, "problem": None}


async def main() -> None:
    names = [f"session-{i}" for i in range(int(sys.argv[2]))]
    ending = asyncio.Event()
    async with kernelbroker.connect(sys.argv[1], os.environ["KERNELBROKER_TOKEN"]) as broker:
        counting = [asyncio.create_task(count(broker, name, ending)) for name in names]
        await asyncio.to_thread(sys.stdin.read)
        ending.set()
        reports = await asyncio.gather(*counting)
    print(json.dumps(dict(zip(names, reports, strict=True))))


if __name__ == "__main__":
    asyncio.run(main())
