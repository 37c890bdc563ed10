"""Runs one adapter in its peer's environment: `python worker.py MODULE:CLASS [--cold]`.

Each line of standard input is a command as JSON; its answer is one line of JSON, `{"ok": ...}` or
`{"error": "..."}`. Everything else that the peer prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parent.parent)  # this directory's parent, in place of this one

from peers.adapter import Adapter, call  # noqa: E402
from peers.measures import Measurer  # noqa: E402
from peers.memory import adopt_orphans  # noqa: E402
from peers.probes import PROBES  # noqa: E402


async def serve(adapter: Adapter) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measurer = Measurer(adapter)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        begin = time.perf_counter()
        try:
            answer: dict[str, Any] = {"ok": await _carry_out(adapter, measurer, command)}
        except Exception as exc:
            lines = str(exc).strip().splitlines() or [""]
            answer = {"error": f"{type(exc).__name__}: {lines[0][:300]}"}
        answer["seconds"] = time.perf_counter() - begin
        print(json.dumps(answer), file=answers, flush=True)


async def _carry_out(adapter: Adapter, measurer: Measurer, command: dict[str, Any]) -> Any:
    match command:
        case {"do": "start"}:
            await call(adapter.start)
        case {"do": "prepare"}:
            await measurer.prepare()
        case {"do": "take", "name": name, "count": count, "budget_s": budget_s}:
            return await measurer.take(name, count, budget_s)
        case {"do": "throughput", "count": count}:
            return await measurer.throughput(count)
        case {"do": "probe", "name": name}:
            await call(adapter.settle)
            return await PROBES[name].run(adapter)
        case {"do": "stop"}:
            await call(adapter.stop)
        case _:
            raise ValueError(f"unknown command {command}")
    return None


if __name__ == "__main__":
    adopt_orphans()
    module, _, name = sys.argv[1].partition(":")
    used = getattr(importlib.import_module(f"peers.{module}"), name)
    asyncio.run(serve(used(cold="--cold" in sys.argv)))
