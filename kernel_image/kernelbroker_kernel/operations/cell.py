"""The cell of an operation that runs code of the project: tests, a build, a command.

The program is not a child of the kernel but of a shell in between, so that code that kills its parent
does not
reach the kernel. What the program leaves behind in its process group ends with it. Its output is the
cell's.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from ..contract import OPERATION_VARIABLE, TEST_OUTPUT_MIME
from ..errors import CellError, Interrupted, Refused
from ..hooks import installed, publish, request_options
from ..shell import end
from ..streams import outputs
from . import calls, go_report, programs, project, testing

_ANNOUNCED_S = 0.2
MAX_OUTPUT_BYTES = 2 * 1024**2
"""Of a program that is passed on. The broker's own limit may be lower."""
_POLL_S = 0.1
_READ_BYTES = 64 * 1024
_MAX_LINE = 256 * 1024
_MAX_REPORT = 64 * 1024**2
_IN_BETWEEN = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]


def run() -> None:
    """Entry point of the cell. Raises CellError if it is no request, Interrupted if it is interrupted."""
    shell: Any = get_ipython()
    options, hooks = request_options(shell).get("operation"), installed(shell)
    if not isinstance(options, dict) or hooks is None:
        raise CellError(
            "Error", "the request has no operation, or the kernel's hooks are not loaded"
        )
    function = _OPERATIONS.get(str(options.get("name")))

    def work() -> dict[str, Any]:
        if function is None:
            raise Refused("bad_request", "there is no such operation")
        return function(**calls.checked(function, options.get("parameters") or {}))

    try:
        response = calls.timed(work)
    except KeyboardInterrupt:
        raise Interrupted from None
    result = response.get("result", {})
    failed = result.get("failed", 0) or result.get("errors", 0) or result.get("exit_code", 0)
    if response["success"] and failed:
        response |= {"success": False, "error": _failure(result), "code": "failed"}
    hooks.exit_code = result.get("exit_code")
    hooks.reported_names = {OPERATION_VARIABLE: response}


def run_tests(target: str | None = None, framework: str = "auto") -> dict[str, Any]:
    """Run the tests of the project."""
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
        status = _run(command.argv, env, command.report, add)
        if command.report == "jest":
            for record in testing.of_jest(Path(document.name).read_bytes()[:_MAX_REPORT]):
                tests.add(record, root)
    announce()
    counts = tests.counts
    if not any(counts.values()) and status not in (0, 5):
        raise Refused(
            "failed", f"{found} ended with status {status} before any test; see its output"
        )
    ended_early = status not in (0, 1) and not (found == "pytest" and status in (2, 5))
    result = {"framework": found, **counts, "failures": tests.failures, "exit_code": status}
    if found == "pytest" and status == 5:  # no tests were collected
        result["exit_code"] = 0
    if ended_early:
        result["note"] = f"{found} ended with status {status}: tests may be missing"
    return result


def build(command: str | None = None) -> dict[str, Any]:
    """Build the project by a command, or by the one that its files suggest."""
    chosen = command or build_command(project.root())
    return {"command": chosen, "exit_code": _run(["/bin/sh", "-c", chosen], {})}


def run_command(command: str) -> dict[str, Any]:
    """Run a command in the project."""
    if "\0" in command:
        raise Refused("bad_request", "a command has no NUL in it")
    bash = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    return {"command": command[:1000], "exit_code": _run([bash, "-c", command], {})}


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


_OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "run_tests": run_tests,
    "build": build,
    "run": run_command,
}


def _failure(result: dict[str, Any]) -> str:
    if "framework" in result and (result["failed"] or result["errors"]):
        return f"{result['failed']} tests failed, {result['errors']} had errors, {result['passed']} passed"
    return f"the program exited with status {result['exit_code']}"


def _run(
    argv: list[str], env: dict[str, str], report: str = "", add: Callable[[Any], None] | None = None
) -> int:
    """Run a program of the project, and return its exit status as a shell gives it."""
    root = project.root()
    programs.find("sh")
    environ = {**os.environ, **env, "PROJECT_PATH": project.SHOWN_ROOT, "TERM": "dumb"}
    if not Path(project.SHOWN_ROOT).is_dir():  # a sandbox without a jail
        environ["PROJECT_PATH"] = str(root)
    with ExitStack() as ours, ExitStack() as theirs, outputs() as shown:
        ends = []
        for _ in range(3):
            reading, writing = os.pipe()
            ours.callback(os.close, reading)
            theirs.callback(os.close, writing)
            os.set_blocking(reading, False)
            ends.append((reading, writing))
        (report_end, report_in), (stdout_end, stdout_in), (stderr_end, stderr_in) = ends
        environ["KERNELBROKER_REPORT"] = str(report_in)
        process = subprocess.Popen(
            [*_IN_BETWEEN, *argv],
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=report_in if report == "go" else stdout_in,
            stderr=stderr_in,
            pass_fds=[report_in] if report == "lines" else [],
            process_group=0,
        )
        try:
            theirs.close()
            output = _Output(MAX_OUTPUT_BYTES)
            lines = _Lines(add or (lambda _: None), output if report == "go" else None, shown[0])
            takers: dict[int, Callable[[bytes], None]] = {
                report_end: lines.take,
                stdout_end: lambda data: output.write(shown[0], data),
                stderr_end: lambda data: output.write(shown[1], data),
            }
            _follow(process, takers)
            output.end(shown[1])
            status = process.wait()
        finally:
            end(process)
    return status if status >= 0 else 128 - status


def _follow(process: subprocess.Popen[Any], takers: dict[int, Callable[[bytes], None]]) -> None:
    """Pass on what the pipes bring, until the process has ended and they are empty."""
    left, ended = dict(takers), False
    while left or not ended:
        if left:
            ready, _, _ = select.select([*left], [], [], 0 if ended else _POLL_S)
        else:
            ready = []
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        if ended and not ready:
            return  # a program that was left behind may hold a pipe for ever
        for descriptor in ready:
            if data := os.read(descriptor, _READ_BYTES):
                left[descriptor](data)
            else:
                del left[descriptor]
        if not ended and (ended := process.poll() is not None):
            with suppress(ProcessLookupError):  # or what it has left behind could write without end
                os.killpg(process.pid, signal.SIGKILL)


class _Output:
    """Passes on so many bytes of output, and drops the rest."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._dropped = 0

    def write(self, descriptor: int | None, data: bytes) -> None:
        view = memoryview(data)[: self._room]
        self._room -= len(view)
        self._dropped += len(data) - len(view)
        while view and descriptor is not None:
            view = view[os.write(descriptor, view) :]

    def end(self, descriptor: int | None) -> None:
        if self._dropped and descriptor is not None:
            os.write(descriptor, f"\n[{self._dropped:,} bytes of output were dropped]\n".encode())


class _Lines:
    """The lines of a report, which is one of ours, or that of `go test` if there is an output for its
    texts."""

    def __init__(
        self, add: Callable[[Any], None], output: _Output | None, descriptor: int | None
    ) -> None:
        self._add = add
        self._output = output
        self._descriptor = descriptor
        self._rest = b""
        self._go = go_report.GoReport()

    def take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_MAX_LINE]
        for line in lines:
            if self._output is None:
                record = _decoded(line)
            else:
                record, text = self._go.read(line)
                self._output.write(self._descriptor, text.encode(errors="replace"))
            if record is not None:
                self._add(record)


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
