"""Processes in a session's sandbox, beside its kernel.

They share the sandbox's confinement and limits with the cells, run at the same time, and end with the
sandbox. Their output is streamed to whoever watches. The broker keeps nothing of a process but the streams
that are open: the sandbox has its state, also for the next broker.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal, TypeVar
from urllib.parse import urlencode

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    NotFound,
    PolicyRefused,
    ProtocolError,
    RequestError,
)
from kernelbroker.protocol.events import Event, Stderr, Stdout
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel.contract import PROCESSES_PATH

from ..kernels.frames import frames
from ..kernels.redaction import Redactor
from ..kernels.transfer import TransferFailed
from ..sessions.session import Session
from ..telemetry.events import ProcessStarted, code_hash
from .files import expect
from .policy import Policies
from .session_streams import streamed

MAX_INPUT_BYTES = 2 * 1024**2
"""Of one input."""
_LIST_BYTES = 4 * 1024**2
T = TypeVar("T")

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal, in characters."""

    cols: int = 80
    rows: int = 24


class Command(msgspec.Struct, kw_only=True):
    """A process to start.

    Attributes:
        cmd: the program: a name to look up in PATH, or a path.
        args: its arguments.
        env: environment variables besides those of the session.
        cwd: the working directory; relative to `/data`, which is the default.
        size: of its terminal; without it the process has pipes.
        stdin: whether its standard input stays open. Otherwise it is empty.
        tag: a name for it.
        timeout: seconds after which it is killed; without it there is no limit but the session's.
    """

    cmd: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    size: TerminalSize | None = None
    stdin: bool = False
    tag: str | None = None
    timeout: float | None = None


class ProcessInfo(Command, kw_only=True):
    """A process that runs."""

    pid: int


class Output(msgspec.Struct, frozen=True):
    """What a process has written, as bytes: to `stdout`, `stderr` or, if it has one, its terminal."""

    stream: Literal["stdout", "stderr", "terminal"]
    data: bytes


class Ended(msgspec.Struct, frozen=True):
    """The end of a process.

    Attributes:
        exit_code: 128 and the signal's number if a signal ended it.
        exited: whether it has exited by itself.
        signal: the name of the signal that ended it, else empty.
    """

    exit_code: int
    exited: bool
    signal: str = ""


class Alive(msgspec.Struct, frozen=True):
    """Nothing was written for a while. Sent so that a dead connection is noticed."""


class _Started(msgspec.Struct):
    pid: int


class _List(msgspec.Struct):
    processes: list[ProcessInfo]


class WatchedProcess:
    """A process, from now on.

    Attributes:
        pid: its number in the sandbox.
    """

    def __init__(self, pid: int, stream: AsyncGenerator[Output | Ended | Alive, None]) -> None:
        self.pid = pid
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[Output | Ended | Alive]:
        """Yield its output, and its end as the last item."""
        return self._stream


class Processes:
    """The processes in the sandboxes of one tenant."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    @contextlib.asynccontextmanager
    async def start(self, session: Session, command: Command) -> AsyncIterator[WatchedProcess]:
        """Start a process and watch it. It goes on when the block ends.

        Raises:
            NotFound: there is no such program or directory.
            Conflict: it does not start, or there are too many.
            BadRequest: an argument is invalid.
            PolicyRefused, ConfirmationRequired: the template's policy does not allow it.
            SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
        """
        env = {**session.options.env, **session.options.secrets, **command.env}
        cwd = command.cwd if command.cwd is not None else session.options.cwd
        line = _command_line(command)
        outcome = "success"
        try:
            _check(command)
            await self._check_policy(session, command, line)
            body = encode(msgspec.structs.replace(command, env=env, cwd=cwd))
            async with _joined(session, "POST", PROCESSES_PATH, body) as process:
                _report(session, command, line, "success")
                outcome = ""
                yield process
        except RequestError as exc:
            if outcome:
                _report(session, command, line, exc.code)
            raise

    @contextlib.asynccontextmanager
    async def connect(self, session: Session, pid: int) -> AsyncIterator[WatchedProcess]:
        """Watch a process, from now on. If nobody has watched it, this begins with what was kept.

        Raises:
            NotFound: there is no such process.
            Others: as `Session.borrow`.
        """
        async with _joined(session, "GET", f"{PROCESSES_PATH}/{pid}") as process:
            yield process

    async def list(self, session: Session) -> Sequence[ProcessInfo]:
        """Return those that run, in the order of their start. Raises as `Session.borrow`."""
        async with (
            session.streams.requests,
            session.borrow() as gateway,
            await gateway.request("GET", PROCESSES_PATH) as answered,
        ):
            await expect(answered, 200)
            try:
                listed = decode_as(await answered.body(_LIST_BYTES), _List).processes
            except ProtocolError as exc:
                raise TransferFailed("the sandbox sent an invalid list of processes") from exc
        own = {**session.options.env, **session.options.secrets}
        for each in listed:  # only what came with the command, and no secrets
            each.env = {n: v for n, v in each.env.items() if own.get(n) != v}
        return listed

    async def feed(self, session: Session, pid: int, data: bytes) -> None:
        """Write to the standard input or terminal, and wait until the process has taken it.

        Raises:
            NotFound: there is no such process.
            Conflict: its standard input is closed.
            PolicyRefused: the policy assesses code, and cannot assess what a process reads.
            Others: as `Session.borrow`.
        """
        if len(data) > MAX_INPUT_BYTES:
            raise BadRequest(f"an input has at most {MAX_INPUT_BYTES:,} bytes; send several")
        self._refuse_unassessed(session)
        await _act(session, pid, {"op": "input"}, data)

    async def close_input(self, session: Session, pid: int) -> None:
        """End the standard input. Raises as `feed`."""
        await _act(session, pid, {"op": "close"})

    async def signal(self, session: Session, pid: int, number: int) -> None:
        """Send a signal to a process and its children. Raises as `feed`."""
        await _act(session, pid, {"op": "signal", "number": number})

    async def resize(self, session: Session, pid: int, size: TerminalSize) -> None:
        """Change the size of its terminal. Raises as `feed`; Conflict: it has none."""
        await _act(session, pid, {"op": "resize", "cols": size.cols, "rows": size.rows})

    async def _check_policy(self, session: Session, command: Command, line: str) -> None:
        if command.size is not None or command.stdin:
            self._refuse_unassessed(session)
        request = ExecutionRequest(code=line, language="shell")
        # That of the sandbox where it would start: a session that is routed has no template of its own.
        assessment = await self._policies.assess_request(request, session.spec.template)
        self._policies.check(request, session.spec.template, session.id, assessment)

    def _refuse_unassessed(self, session: Session) -> None:
        mode = self._policies.effective(session.spec.template).mode
        if mode in ("confirm", "block"):
            raise PolicyRefused(
                f"the policy of the template is {mode!r}: what a process reads cannot be assessed, so it "
                "gets no input and no terminal. Give the code as arguments, or run it as a cell"
            )


def _check(command: Command) -> None:
    texts = [command.cmd, *command.args, command.cwd or "", command.tag or ""]
    texts += [*command.env, *command.env.values()]
    if not command.cmd:
        raise BadRequest("name the program to start")
    if any("\0" in text for text in texts):
        raise BadRequest("no NUL in a command, its arguments, variables or directory")
    if any(not name or "=" in name for name in command.env):
        raise BadRequest("an environment variable has a name, without '='")
    size = command.size
    if size is not None and not (0 < size.cols < 2**16 and 0 < size.rows < 2**16):
        raise BadRequest("a terminal has 1 to 65535 columns and rows")


def _command_line(command: Command) -> str:
    """The command as shell code; for a shell that gets its code as an argument, that code."""
    name = command.cmd.rsplit("/", 1)[-1]
    if name in _SHELLS and "-c" in command.args[:-1]:
        return command.args[command.args.index("-c") + 1]
    return shlex.join([command.cmd, *command.args])


def _report(session: Session, command: Command, line: str, outcome: str) -> None:
    session.emit(ProcessStarted, command.cmd[:200], code_hash(line), outcome)


@contextlib.asynccontextmanager
async def _joined(
    session: Session, method: str, target: str, body: bytes = b""
) -> AsyncIterator[WatchedProcess]:
    async with streamed(session, method, target, body) as answered:
        received = frames(answered)
        async with contextlib.aclosing(received):
            first = await anext(received, None)
            if first is None or first.kind != b"s":
                raise TransferFailed("the sandbox did not start the process")
            pid = _decode(first.content, _Started).pid
            redactor = Redactor(_latin(secret) for secret in session.options.secrets.values())
            yield WatchedProcess(pid, _events(received, redactor))


async def _events(
    received: AsyncGenerator[tuple[bytes, bytes], None],
    redactor: Redactor,
) -> AsyncGenerator[Output | Ended | Alive, None]:
    terminal = False
    async for kind, content in received:
        match kind:
            case b"o" | b"p":
                terminal = kind == b"p"
                for event in redactor.events(Stdout(content=content.decode("latin-1"))):
                    yield _output(event, terminal)
            case b"e":
                for event in redactor.events(Stderr(content=content.decode("latin-1"))):
                    yield _output(event, terminal)
            case b"x":
                for event in redactor.rest():
                    yield _output(event, terminal)
                yield _decode(content, Ended)
                return
            case b"k":
                yield Alive()
            case _:
                raise TransferFailed("the sandbox sent a frame of an unknown kind")
    raise TransferFailed("the sandbox ended before the process did")


def _output(event: Event, terminal: bool) -> Output:
    assert isinstance(event, Stdout | Stderr)
    data = event.content.encode("latin-1")
    if isinstance(event, Stderr):
        return Output("stderr", data)
    return Output("terminal" if terminal else "stdout", data)


def _latin(secret: str) -> str:
    """The bytes of a secret as text, as those of the output are."""
    return secret.encode(errors="surrogateescape").decode("latin-1")


def _decode(content: bytes, type_: type[T]) -> T:
    try:
        return decode_as(content, type_)
    except ProtocolError as exc:
        raise TransferFailed("the sandbox sent an invalid frame") from exc


async def _act(session: Session, pid: int, query: dict[str, object], body: bytes = b"") -> None:
    target = f"{PROCESSES_PATH}/{pid}?{urlencode(query)}"
    headers = {"Content-Length": str(len(body))}
    if pid <= 0:
        raise NotFound(f"there is no process {pid}")
    async with (
        session.streams.requests,
        session.borrow() as gateway,
        await gateway.request("POST", target, headers) as answered,
    ):
        if body:
            await answered.send(body)
        await expect(answered, 204)
