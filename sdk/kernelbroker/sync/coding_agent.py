"""Coding agents on the project of a session, without `await`."""

from __future__ import annotations

from collections.abc import Generator

from .. import coding_agent
from ..loop_thread import LoopThread
from ..native_agent import MAX_TURNS
from ..native_models import Driver
from ..protocol.coding_agents import AgentEvent, AgentName, CodingAgentResult


class CodingAgent:
    """See `kernelbroker.CodingAgent`."""

    def __init__(self, asynchronous: coding_agent.CodingAgent, thread: LoopThread) -> None:
        self._async = asynchronous
        self._thread = thread

    def run(
        self,
        task: str,
        *,
        agent: AgentName | None = None,
        model: str | None = None,
        client: Driver | None = None,
        timeout: float | None = None,
        tests: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> AgentRun:
        run = self._async.run(
            task,
            agent=agent,
            model=model,
            client=client,
            timeout=timeout,
            tests=tests,
            max_turns=max_turns,
        )
        return AgentRun(run, self._thread)


class AgentRun:
    """See `kernelbroker.AgentRun`. Iterate it for its events; `wait` returns its result."""

    def __init__(self, run: coding_agent.AgentRun, thread: LoopThread) -> None:
        self._async = run
        self._thread = thread

    @property
    def result(self) -> CodingAgentResult | None:
        return self._async.result

    def __iter__(self) -> Generator[AgentEvent, None, None]:
        return self._thread.iterate(self._async.events())

    def wait(self) -> CodingAgentResult:
        """Wait until it has ended."""
        return self._thread.call(self._async.wait())
