"""The native coding agent: a model of the caller's calls the operations on the project.

It runs in the caller's process. Only the operations run in the sandbox, each with the session's policy
and limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from .code import Code
from .code_errors import CodeOperationError
from .native_models import Ask, ModelReply, ModelRequest, ToolCall
from .native_tools import TOOLS, cut, told
from .protocol.coding_agents import NATIVE, AgentEvent, CodingAgentResult
from .protocol.operations import RUNNING, CodeOperationResponse

MAX_TURNS = 50
_MAX_CALLS = 20
"""In one answer of the model."""
_MAX_CONVERSATION = 400_000
"""Characters of tool results; beyond them the oldest are left out."""
_SHOWN = 4_000
_LEFT_OUT = "[left out: call the tool again if you need it]"
_SYSTEM = """You work on the project in a sandbox, with the tools that you have. Read before you edit,
make small exact edits, and run the tests when you have changed something. When the task is done, answer
with a short summary and call no tool."""


class NativeAgent:
    """Works on the project of one session.

    Args:
        ask: asks the model.
        timeout: seconds for all of it.
        tests: whether the tests run afterwards.
    """

    def __init__(
        self, code: Code, ask: Ask, max_turns: int, timeout: float | None, tests: bool
    ) -> None:
        if max_turns < 1:
            raise ValueError("max_turns is at least 1")
        self._code = code
        self._ask = ask
        self._max_turns = max_turns
        self._timeout = timeout
        self._tests = tests
        self._deadline = float("inf")
        self._answer: CodeOperationResponse | None = None

    async def run(self, task: str) -> AsyncGenerator[AgentEvent | CodingAgentResult, None]:
        """Work on a task, and yield the events; the last item is the result."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        result = CodingAgentResult(success=False, agent=NATIVE, outcome="turn_limit")
        snapshot = await self._snapshot(result)
        async with aclosing(self._turns(task, result)) as turns:
            async for event in turns:
                result.events += 1
                yield event
        result.success = result.outcome == "completed"
        if self._tests:
            try:
                async with aclosing(self._operated("run_tests", {})) as tested:
                    async for event in tested:
                        result.events += 1
                        yield event
                result.tests = self._tests_outcome()
            except CodeOperationError as exc:
                result.tests = {"error": exc.message}
        if snapshot is not None:
            await self._diff(snapshot, result)
        yield result

    async def _turns(
        self, task: str, result: CodingAgentResult
    ) -> AsyncGenerator[AgentEvent, None]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        tools = [tool.described() for tool in TOOLS.values()]
        for turn in range(1, self._max_turns + 1):
            try:
                async with asyncio.timeout(self._left()):
                    reply = await self._ask(ModelRequest(_SYSTEM, messages, tools))
            except TimeoutError as exc:
                out_of_time = time.monotonic() >= self._deadline
                result.outcome = "timeout" if out_of_time else "failed"
                result.error = "there was no time left" if out_of_time else f"the model: {exc!r}"
                return
            except Exception as exc:  # of any library
                result.outcome, result.error = "failed", f"the model: {exc!r}"[:2_000]
                return
            _count(reply, result)
            result.text = reply.text or result.text
            yield AgentEvent(type="step_start", agent=NATIVE, step=turn, text=reply.text)
            if not reply.calls:
                result.outcome = "completed"
                return
            messages.append({"role": "assistant", "content": reply.blocks()})
            answers: list[dict[str, Any]] = []
            for number, call in enumerate(reply.calls):
                if time.monotonic() >= self._deadline:
                    result.outcome, result.error = "timeout", "there was no time left"
                    return
                async with aclosing(self._called(call, number)) as called:
                    async for event in called:
                        yield event
                answer = event
                answers.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": answer.content or "",
                        "is_error": answer.is_error,
                    }
                )
            messages.append({"role": "user", "content": answers})
            _trim(messages)
        result.error = f"the task was not done after {self._max_turns} answers of the model"

    async def _called(self, call: ToolCall, number: int) -> AsyncGenerator[AgentEvent, None]:
        """Carry a call out. The last event is its observation."""
        tool, arguments = TOOLS.get(call.name), call.arguments
        yield AgentEvent(
            type="code_operation",
            agent=NATIVE,
            operation=None if tool is None else tool.operation,
            tool=call.name,
            id=call.id,
            parameters=_shortened(arguments),
        )
        problem = None
        if number >= _MAX_CALLS:
            problem = f"at most {_MAX_CALLS} calls at once; this one was not carried out"
        elif tool is None:
            problem = f"there is no tool {call.name[:100]}; there are: {', '.join(TOOLS)}"
        elif not isinstance(arguments, dict):
            problem = "the arguments are no JSON object"
        if problem is None:
            assert tool is not None
            given = {name: value for name, value in arguments.items() if value is not None}
            try:
                async with aclosing(self._operated(tool.operation, given)) as operated:
                    async for event in operated:
                        yield event
            except CodeOperationError as exc:
                problem = f"{exc.code}: {exc.message}"
        answer, self._answer = self._answer, None
        if problem is None and answer is None:
            problem = "the operation had no result"
        seen = AgentEvent(type="observation", agent=NATIVE, id=call.id, is_error=True)
        if problem is not None:
            seen.content = cut(problem)
        elif answer is not None:
            seen.content, seen.is_error = told(answer), not answer.success
        yield seen

    async def _operated(
        self, operation: str, parameters: dict[str, Any]
    ) -> AsyncGenerator[AgentEvent, None]:
        """Carry an operation out, and keep its answer. Raises CodeOperationError."""
        self._answer = None
        if operation not in RUNNING:
            self._answer = await self._code.execute(operation, parameters)
            return
        if (left := self._left()) is not None:
            parameters = {**parameters, "timeout": max(1.0, left)}
        output: dict[str, str] = {"stdout": "", "stderr": ""}
        async with aclosing(self._code.stream(operation, parameters)) as events:
            async for event in events:
                if (kind := event["type"]) in output:
                    output[kind] = (output[kind] + event["content"])[-100_000:]
                elif kind == "test_output":
                    names = ("tests", "passed", "failed", "errors", "skipped")
                    tests = {name: event.get(name) for name in names}
                    yield AgentEvent(type="test_output", agent=NATIVE, tests=tests)
                elif kind == "result":
                    answer = msgspec.convert(event, CodeOperationResponse)
                    answer.stdout, answer.stderr = output["stdout"], output["stderr"]
                    self._answer = answer

    def _left(self) -> float | None:
        left = self._deadline - time.monotonic()
        return None if left == float("inf") else max(0.0, left)

    def _tests_outcome(self) -> dict[str, Any]:
        answer = self._answer
        if answer is not None and isinstance(answer.result, dict):
            return answer.result
        return {"error": (answer.error if answer else None) or "the tests had no result"}

    async def _snapshot(self, result: CodingAgentResult) -> str | None:
        try:
            return str((await self._code.snapshot()).result["snapshot"])
        except CodeOperationError as exc:  # a task can be done without
            result.diff_note = f"there is no diff: {exc.message}"
            return None

    async def _diff(self, snapshot: str, result: CodingAgentResult) -> None:
        try:
            found = (await self._code.diff(snapshot)).result
        except CodeOperationError as exc:
            result.diff_note = f"there is no diff: {exc.message}"
            return
        result.diff, result.diff_truncated = found["diff"], found["diff_truncated"]
        result.files, result.files_truncated = found["files"], found["files_truncated"]


def _count(reply: ModelReply, result: CodingAgentResult) -> None:
    result.turns += 1
    for name, value in reply.usage.items():
        result.usage[name] = result.usage.get(name, 0) + value
    if reply.cost_usd is not None:
        result.cost_usd = (result.cost_usd or 0.0) + reply.cost_usd


def _trim(messages: list[dict[str, Any]]) -> None:
    """Leave the oldest results of tools out of a conversation that is too long."""
    results = [
        block
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]
    size = sum(len(block["content"]) for block in results)
    for block in results:
        if size <= _MAX_CONVERSATION:
            return
        size -= len(block["content"]) - len(_LEFT_OUT)
        block["content"] = _LEFT_OUT


def _shortened(arguments: Any) -> Any:
    if not isinstance(arguments, dict):
        return str(arguments)[:_SHOWN]
    return {
        name: value[:_SHOWN] if isinstance(value, str) else value
        for name, value in arguments.items()
    }
