"""Runs a coding agent in the project: its events, a time limit, bounds, and at the end diff and tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import Refused
from ..interrupts import uninterrupted
from ..process_family import end_family
from ..shell import end
from ..streams import outputs
from . import agent_events, coding_agents, project, snapshot, supervise
from .running import Output, follow

MAX_TASK_CHARS = 30_000
MAX_LINE_BYTES = 1024**2
MAX_EVENTS = 5_000
MAX_EVENT_BYTES = 4 * 1024**2
MAX_READ_BYTES = 64 * 1024**2
"""An agent that prints more is ended."""
MAX_TEXT_BYTES = 256 * 1024
"""Of what it prints that is not one of its events."""
_ERROR_BYTES = 1_000
_END_S = 5.0
Announce = Callable[[dict[str, Any]], None]


def run_agent(
    task: str, name: str | None, model: str | None, seconds: float, announce: Announce
) -> dict[str, Any]:
    """Run an agent on a task, and return how it ended.

    Args:
        announce: gets each event.

    Raises:
        Refused: there is no such agent, it does not start, or it finds no model.
    """
    if not task.strip() or "\0" in task or len(task) > MAX_TASK_CHARS:
        raise Refused("bad_request", f"a task has 1 to {MAX_TASK_CHARS:,} characters, and no NUL")
    project.root()
    name, agent, program = coding_agents.chosen(name)
    coding_agents.check_model(agent, os.environ)
    variables = agent.prepare(os.environ, model)
    before, note = _snapshot()
    watched = _Watched(name, agent, announce)
    command = [program, *agent.command(task, model)]
    status, reason = _run(command, variables, watched, time.monotonic() + seconds)
    progress = watched.progress
    if not progress.reached_model and (status or progress.error):
        said = (progress.error or watched.errors()).strip() or f"status {status}"
        code = coding_agents.NO_MODEL if progress.error else coding_agents.AGENT_FAILED
        raise Refused(code, f"{name} ended before a model answered: {said[:2_500]}")
    result: dict[str, Any] = {
        "agent": name,
        "outcome": reason or ("failed" if status or progress.error else "completed"),
        "text": agent_events.clean(progress.text),
        "error": agent_events.clean(progress.error) or None,
        "model": progress.model or model,
        "cost_usd": progress.cost_usd,
        "usage": progress.usage,
        "turns": progress.turns or progress.steps,
        "exit_code": status,
        "events": watched.count,
        "events_dropped": watched.dropped,
        "diff": None,
        "diff_truncated": False,
        "files": [],
    }
    return result | _changes(before, note)


def _snapshot() -> tuple[str | None, str]:
    try:
        return snapshot.take(), ""
    except Refused as refused:  # a task can be done without git, and on a project that is too large
        return None, refused.message


def _changes(before: str | None, note: str) -> dict[str, Any]:
    if before is not None:
        try:
            return snapshot.since(before)
        except Refused as refused:
            note = refused.message
    return {"diff_note": f"there is no diff: {note}"}


class _Watched:
    """What an agent prints: its events are passed on within bounds, and the rest is text."""

    def __init__(self, name: str, agent: coding_agents.Agent, announce: Announce) -> None:
        self.progress = agent_events.Progress()
        self.count = self.dropped = self.read = 0
        self._name = name
        self._translate = agent.translate
        self._announce = announce
        self._bytes = 0
        self._line = bytearray()
        self._skips = False
        self._first = self._last = b""

    def take(self, data: bytes, text: Callable[[bytes], None]) -> None:
        """Take standard output; `text` gets the lines that are no events."""
        self.read += len(data)
        *lines, rest = data.split(b"\n")
        for each in lines:
            self._line += each
            self._take_line(bytes(self._line), text)
            self._line.clear()
            self._skips = False
        self._line += rest
        if len(self._line) > MAX_LINE_BYTES:
            self._skips = True
            self._line.clear()

    def end(self, text: Callable[[bytes], None]) -> None:
        """There is no more."""
        self._take_line(bytes(self._line), text)
        for event in self.progress.take_pending():
            self._pass_on(event)

    def take_error(self, data: bytes) -> None:
        """Take standard error."""
        self.read += len(data)
        self._first = (self._first + data)[:_ERROR_BYTES]
        self._last = (self._last + data)[-_ERROR_BYTES:]

    def errors(self) -> str:
        """The beginning and the end of standard error."""
        cut = self._last.startswith(self._first)
        both = self._first if cut else self._first + b"\n...\n" + self._last
        return both.decode(errors="replace")

    def _take_line(self, line: bytes, text: Callable[[bytes], None]) -> None:
        if self._skips or len(line) > MAX_LINE_BYTES:
            self.dropped += 1
        elif (events := agent_events.events_of(line, self._translate, self.progress)) is not None:
            for event in events:
                self._pass_on(event)
        elif line.strip():
            text(line + b"\n")

    def _pass_on(self, event: dict[str, Any]) -> None:
        event = {**event, "agent": self._name}
        self._bytes += len(json.dumps(event))
        if self.count >= MAX_EVENTS or self._bytes > MAX_EVENT_BYTES:
            self.dropped += 1
            return
        self.count += 1
        self._announce(event)


def _run(
    command: list[str], variables: dict[str, str], watched: _Watched, deadline: float
) -> tuple[int, str | None]:
    """Run the program. Returns its status, and why it was ended, if it was."""
    root = project.root()
    shown = project.SHOWN_ROOT if Path(project.SHOWN_ROOT).is_dir() else str(root)
    environ = {**os.environ, **variables, "PROJECT_PATH": shown, "PWD": shown, "TERM": "dumb"}
    with outputs() as ends, _started(command, environ, shown) as process:
        assert process.stdout is not None and process.stderr is not None
        output = Output(MAX_TEXT_BYTES)
        reason = ""

        def text(data: bytes) -> None:
            output.write(ends[0], data)

        def take_error(data: bytes) -> None:
            watched.take_error(data)
            output.write(ends[1], data)

        def is_over() -> bool:
            nonlocal reason
            if time.monotonic() > deadline:
                reason = "timeout"
            elif watched.read > MAX_READ_BYTES:
                reason = "output_limit"
            return bool(reason)

        takers: dict[int, Callable[[bytes], None]] = {
            process.stdout.fileno(): lambda data: watched.take(data, text),
            process.stderr.fileno(): take_error,
        }
        follow(process, takers, is_over)
        if reason:
            _end_tree(process)
        watched.end(text)
        output.end(ends[1])
        status = process.wait()
    return (status if status >= 0 else 128 - status), reason or None


@contextmanager
def _started(
    command: list[str], environ: dict[str, str], directory: str
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-I", str(supervise.__file__), *command],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        try:
            for each in (process.stdout, process.stderr):
                os.set_blocking(each.fileno(), False)
            yield process
        finally:
            _end_tree(process)


@uninterrupted()
def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End the supervisor, which ends all that it supervises, and what remains if it was killed."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    end_family(process.pid)
    end(process)
