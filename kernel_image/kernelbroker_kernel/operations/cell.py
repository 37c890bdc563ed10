"""The cell of an operation that runs code of the project: tests, a build, a command."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from ..browser import operation as browsing
from ..contract import AGENT_EVENT_MIME, OPERATION_VARIABLE, TEST_OUTPUT_MIME
from ..errors import CellError, Interrupted, Refused
from ..hooks import installed, publish, request_options
from ..parameters import checked
from ..surrogates import well_formed
from . import agent_run, calls, project, testing
from .running import run_program

_ANNOUNCED_S = 0.2
_AGENT_SHARE = 0.7
_RESERVE_S = 60.0
"""At most this, and at most the rest of the share, is kept for what follows a coding agent."""
_REPORT_S = 2.0
_KILLED = 128 + signal.SIGKILL
_MAX_REPORT = 64 * 1024**2


def run() -> None:
    """Entry point of the cell. Raises CellError if it is no request, Interrupted if it is interrupted."""
    shell: Any = get_ipython()
    options, hooks = request_options(shell).get("operation"), installed(shell)
    if not isinstance(options, dict) or hooks is None:
        raise CellError(
            "Error", "the request has no operation, or the kernel's hooks are not loaded"
        )
    name, parameters = str(options.get("name")), options.get("parameters") or {}
    function = _OPERATIONS.get(name)

    memory_kills = _memory_kills()

    def work() -> dict[str, Any]:
        if name.startswith(browsing.PREFIX):
            return browsing.run(shell, name, parameters)
        if function is None:
            raise Refused("bad_request", "there is no such operation")
        return function(**checked(function, parameters))

    try:
        response = calls.timed(work)
    except _TestsInterrupted as interrupted:
        hooks.reported_names = {OPERATION_VARIABLE: {"result": well_formed(interrupted.result)}}
        raise Interrupted from None
    except KeyboardInterrupt:
        raise Interrupted from None
    result = response.get("result", {})
    failed = result.get("failed", 0) or result.get("errors", 0) or result.get("exit_code", 0)
    failed = failed or result.get("outcome", "completed") != "completed"
    failed = failed or not result.get("finished", True)
    if response["success"] and failed:
        response |= {"success": False, "error": _failure(result), "code": "failed"}
        # Whatever ends a command, its status is the answer.
        is_killed = name != "run" and result.get("exit_code") == _KILLED
        if is_killed and _memory_kills() > memory_kills:
            error = "the program was killed, since the memory of the sandbox was used up"
            response |= {"error": error, "code": "out_of_memory"}
    hooks.exit_code = result.get("exit_code")
    hooks.reported_names = {OPERATION_VARIABLE: response}


def _memory_kills() -> int:
    """How many processes the system has killed since memory was short; 0 where it does not say.

    The system counts those of all sandboxes, so this alone does not tell whose they were.
    """
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class _TestsInterrupted(KeyboardInterrupt):
    """The tests did not end in time. `result` is what they have reported."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__()
        self.result = result


def run_tests(target: str | None = None, framework: str = "auto") -> dict[str, Any]:
    """Run the tests of the project."""
    return _tested(target, framework, None)


def _tested(target: str | None, framework: str, deadline: float | None) -> dict[str, Any]:
    shell: Any = get_ipython()
    root, tests = project.root(), testing.Tests()
    announced_at = 0.0

    def add(record: Any) -> None:
        nonlocal announced_at
        tests.add(record, root)
        if time.monotonic() - announced_at > _ANNOUNCED_S:
            announce()

    def announce() -> None:
        nonlocal announced_at
        announced_at = time.monotonic()
        if (payload := tests.announce()) is not None:
            publish(shell, TEST_OUTPUT_MIME, payload)

    with tempfile.NamedTemporaryFile(prefix="report-") as document:
        found, command = testing.command(framework, target, document.name)
        path = os.pathsep.join(filter(None, (str(testing.REPORTERS), os.environ.get("PYTHONPATH"))))
        env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
        try:
            status = run_program(command.argv, env, command.report, add, deadline)
        except KeyboardInterrupt:
            announce()
            reported = {"framework": found, **tests.counts, **tests.expected}
            reported["failures"] = tests.failures
            raise _TestsInterrupted(
                reported | {"finished": False, "running": tests.running}
            ) from None
        if command.report == "jest":
            for record in testing.of_jest(Path(document.name).read_bytes()[:_MAX_REPORT]):
                tests.add(record, root)
    if command.report == "go":  # it knows by itself
        tests.finished = status in (0, 1)
    announce()
    counts = tests.counts
    ended_early = status not in (0, 1) and not (found == "pytest" and status in (2, 5))
    result = {"framework": found, **counts, **tests.expected, "failures": tests.failures}
    result["exit_code"] = status
    result["finished"] = tests.finished
    if found == "pytest" and status == 5:  # no tests were collected
        result["exit_code"] = 0
    if not any(counts.values()) and not tests.expected and status not in (0, 5):
        result["note"] = f"{found} ended with status {status} before any test; see its output"
    elif ended_early:
        result["note"] = f"{found} ended with status {status}: tests may be missing"
    elif not (tests.finished or counts["failed"] or counts["errors"]):
        result["note"] = (
            f"{found} ended before all tests had been run: a test or the setup exits, or takes tests away"
        )
    return result


def build(command: str | None = None) -> dict[str, Any]:
    """Build the project by a command, or by the one that its files suggest."""
    chosen = command or build_command(project.root())
    return {"command": chosen, "exit_code": run_program(["/bin/sh", "-c", chosen], {})}


def run_command(command: str) -> dict[str, Any]:
    """Run a command in the project."""
    if "\0" in command:
        raise Refused("bad_request", "a command has no NUL in it")
    bash = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    return {"command": command[:1000], "exit_code": run_program([bash, "-c", command], {})}


def build_command(root: Path) -> str:
    """The command that builds a project of this kind. Raises Refused."""
    if (root / "Makefile").is_file() or (root / "makefile").is_file():
        return "make"
    with suppress(OSError, ValueError, AttributeError, TypeError):
        if "build" in json.loads((root / "package.json").read_bytes()[: 1024**2]).get(
            "scripts", {}
        ):
            return "npm run build"
    if (root / "go.mod").is_file():
        return "go build ./..."
    if (root / "Cargo.toml").is_file():
        return "cargo build"
    if (root / "CMakeLists.txt").is_file():
        return "cmake -B build && cmake --build build"
    if (root / "pyproject.toml").is_file() or (root / "setup.py").is_file():
        return "python -m compileall -q ."
    raise Refused("not_found", "nothing tells how to build this project: give the command")


def run_coding_agent(
    task: str,
    agent: str | None = None,
    model: str | None = None,
    tests: bool = True,
    seconds: float = 300.0,
) -> dict[str, Any]:
    """Let a coding agent work on the project, then run the tests.

    Args:
        seconds: for all of it. The agent gets most of them, so that its work is not lost at the end.
    """
    shell: Any = get_ipython()
    started_at = time.monotonic()

    def announce(event: dict[str, Any]) -> None:
        publish(shell, AGENT_EVENT_MIME, event)

    share = seconds * _AGENT_SHARE
    result = agent_run.run_agent(task, agent, model, max(share, seconds - _RESERVE_S), announce)
    return result | {"tests": _tests_until(started_at + seconds - _REPORT_S) if tests else None}


def _tests_until(deadline: float) -> dict[str, Any]:
    """The outcome of the tests, or why there is none."""
    try:
        return _tested(None, "auto", deadline)
    except Refused as refused:
        return {"error": refused.message}
    except _TestsInterrupted:  # what the agent has done is not told by its tests
        raise KeyboardInterrupt from None


_OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "run_coding_agent": run_coding_agent,
    "run_tests": run_tests,
    "build": build,
    "run": run_command,
}


def _failure(result: dict[str, Any]) -> str:
    if "outcome" in result:
        return str(result["error"] or f"the agent ended with {result['outcome']}")
    if "framework" in result and (result["failed"] or result["errors"]):
        return f"{result['failed']} tests failed, {result['errors']} had errors, {result['passed']} passed"
    if "note" in result:
        return str(result["note"])
    return f"the program exited with status {result['exit_code']}"
