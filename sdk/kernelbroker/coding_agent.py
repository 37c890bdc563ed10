"""Coding agents on the project of a session: `session.coding_agent`.

The agents of the sandbox's image run inside it. `native` needs none: a model of the caller's calls the
operations of `session.code` (see `native_agent`). It also takes over where an agent is missing or finds
no model.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from typing import Any

import msgspec

from .code import Code
from .code_errors import CodeOperationError, error_of
from .native_agent import MAX_TURNS, NativeAgent
from .native_models import Driver, driver_of
from .protocol.coding_agents import NATIVE, AgentEvent, AgentName, CodingAgentResult
from .protocol.operations import AGENT_UNAVAILABLE, FAILED

__all__ = ["AgentRun", "CodingAgent"]

_OUTPUT = ("stdout", "stderr")
_POLICY_REFUSED = "policy_refused"


class CodingAgent:
    """The coding agents that work on the project of one session."""

    def __init__(self, code: Code) -> None:
        self._code = code

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
        """Let an agent work on the project, then run the tests.

            run = session.coding_agent.run("mend the failing test", client=anthropic.AsyncAnthropic())
            async for event in run:
                print(event.type, event.tool or event.text)
            result = await run
            print(result.agent, result.tests, result.cost_usd, result.diff)

        Nothing starts before the first event or the result is asked for.

        Args:
            agent: `claude-code`, `gemini-cli`, `opencode`, or `native`. By default the agent of the
                sandbox.
            model: the name of the model, for the agent or the client. Agents have a default.
            client: drives `native`, also as a fallback: an Anthropic or OpenAI client, or a callable (see
                `native_agent.ModelRequest`).
            timeout: seconds for the agent and the tests; by default the longest that the broker allows.
            tests: whether the tests run afterwards.
            max_turns: answers of the model that `native` may take.

        Raises:
            ValueError: `native` without a client.
        """
        driver = None if client is None else driver_of(client, model)
        if agent == NATIVE and driver is None:
            raise ValueError(
                "native needs client=...: an Anthropic or OpenAI client, or a callable"
            )
        given = {"task": task, "agent": agent, "model": model, "tests": tests, "timeout": timeout}
        given["on_disconnect"] = "interrupt"
        parameters = {name: value for name, value in given.items() if value is not None}
        native = None
        if driver is not None:
            native = NativeAgent(self._code, driver, max_turns, timeout, tests)
        return AgentRun(self._code, parameters, native)


class AgentRun:
    """One run of a coding agent: iterate it for its events, await it for its result.

    Leaving the iteration ends the agent, with its processes.
    """

    def __init__(self, code: Code, parameters: dict[str, Any], native: NativeAgent | None) -> None:
        self._code = code
        self._parameters = parameters
        self._native = native
        self._events: AsyncGenerator[AgentEvent, None] | None = None
        self._result: CodingAgentResult | None = None

    @property
    def result(self) -> CodingAgentResult | None:
        """How it ended; None before."""
        return self._result

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self.events()

    def __await__(self) -> Generator[Any, None, CodingAgentResult]:
        return self.wait().__await__()

    def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events, as iterating does. They are yielded once.

        Raises:
            CodeOperationError: the agent is not available (`agent_missing`, `no_model`, `agent_failed`) and
                there is no client for `native`; or the run was refused or interrupted.
        """
        if self._events is None:
            self._events = self._run()
        return self._events

    async def aclose(self) -> None:
        """End the run, if it has not ended. Closing again has no effect."""
        if self._events is not None:
            await self._events.aclose()

    async def wait(self) -> CodingAgentResult:
        """Wait until it has ended, as awaiting does. Raises as `events`."""
        async for _ in self.events():
            pass
        if self._result is None:
            raise CodeOperationError(
                "the run was ended", operation="run_coding_agent", code="aborted"
            )
        return self._result

    async def _run(self) -> AsyncGenerator[AgentEvent, None]:
        started_at, requested = time.monotonic(), self._parameters.get("agent")
        reason = None
        if requested != NATIVE:
            reason = ""
            async with aclosing(self._inside()) as inside:
                async for event in inside:
                    if event.type == "fallback":
                        reason = event.text
                    yield event
            if not reason:
                return
        assert self._native is not None
        async with aclosing(self._native.run(str(self._parameters["task"]))) as native:
            async for each in native:
                if isinstance(each, CodingAgentResult):
                    each.requested, each.fallback = requested, reason
                    each.execution_time_ms = round((time.monotonic() - started_at) * 1000)
                    self._result = each
                else:
                    yield each

    async def _inside(self) -> AsyncGenerator[AgentEvent, None]:
        """The events of an agent in the sandbox; the last one is `fallback` if `native` is to do it."""
        requested = self._parameters.get("agent")
        events = self._code.stream("run_coding_agent", self._parameters)
        async with aclosing(self._unless_refused(events)) as answered:
            async for event in answered:
                if event["type"] == "started":
                    continue
                if event["type"] != "result":
                    yield _event(event)
                    continue
                code, error = event.get("code"), event.get("error") or "it failed"
                is_unavailable = code in AGENT_UNAVAILABLE or code == _POLICY_REFUSED
                if is_unavailable and self._native is not None:
                    yield AgentEvent(type="fallback", agent=NATIVE, text=error)
                elif isinstance(event.get("result"), dict) and code in (None, FAILED):
                    self._result = _result(event, requested)
                else:
                    more = ""
                    if code in AGENT_UNAVAILABLE:
                        more = "; give client=... to go on with `native`"
                    sandbox_id = await self._code.sandbox_id()
                    raise error_of(code or FAILED, error + more, sandbox_id, "run_coding_agent")

    async def _unless_refused(
        self, events: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events. A refusal by the policy is a result like an agent that is missing."""
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except CodeOperationError as exc:
            if exc.code != _POLICY_REFUSED or self._native is None:
                raise
            yield {"type": "result", "success": False, "code": exc.code, "error": exc.message}


def _event(event: dict[str, Any]) -> AgentEvent:
    kind = event["type"]
    if kind in _OUTPUT:
        return AgentEvent(type=kind, text=event.get("content", ""))
    if kind == "test_output":
        names = ("tests", "passed", "failed", "errors", "skipped")
        return AgentEvent(type=kind, tests={name: event.get(name) for name in names})
    try:
        return msgspec.convert(event, AgentEvent)
    except msgspec.ValidationError:
        return AgentEvent(type="agent_event", raw=event)


def _result(event: dict[str, Any], requested: str | None) -> CodingAgentResult:
    facts = {name: event.get(name) for name in ("success", "execution_id", "execution_time_ms")}
    told = {name: value for name, value in event["result"].items() if value is not None}
    try:
        return msgspec.convert({**told, **facts, "requested": requested}, CodingAgentResult)
    except msgspec.ValidationError as exc:
        raise CodeOperationError(f"the sandbox sent an invalid result: {exc}") from exc
