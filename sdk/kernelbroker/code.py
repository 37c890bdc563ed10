"""Operations on the project in a session: `session.code`.

Each returns a `CodeOperationResponse`. What is refused raises an error of `code_errors`; tests, builds
and commands that fail are answers, with `success=False`.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from .code_errors import (
    CodeOperationError,
    OperationConfirmationRequired,
    SandboxConnectionError,
    error_of,
)
from .discovery import Address
from .file_transfer import upload
from .http_request import HTTPRequest
from .protocol.codec import decode_json, encode
from .protocol.errors import (
    ConfirmationRequired,
    ConnectionFailed,
    ConnectionLost,
    RequestError,
    SessionGone,
    Unauthorized,
)
from .protocol.operations import BROWSING, FAILED, READING, RUNNING, CodeOperationResponse

Framework: TypeAlias = Literal["auto", "pytest", "unittest", "node", "jest", "vitest", "go"]

ATTEMPTS = 3
"""How often a connection is tried, and a request that only reads."""
_MAX_ANSWER = 24 * 2**20
_MAX_BASES = 1_000
_SILENCE_TIMEOUT = 3600.0
"""Seconds for which tests or a command may be silent."""
_OPERATION_TIMEOUT = 180.0
EXCLUDED = (".venv", "node_modules", "__pycache__")


class Code:
    """The project of one session, at /workspace/project in its sandbox. Paths are relative to it.

    It remembers what was read: an edit is refused if the file has changed since.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        opened: Callable[[], Awaitable[str]],
        *,
        pauses: tuple[float, float] = (2.0, 10.0),
    ) -> None:
        """
        Args:
            timeout: seconds to wait for a connection.
            opened: opens the session if needed, and returns its path at the broker.
            pauses: the shortest and the longest pause between attempts.
        """
        self._address = address
        self._timeout = timeout
        self._opened = opened
        self._pauses = pauses
        self._bases: dict[str, str] = {}

    async def upload(
        self,
        local: str | os.PathLike[str],
        *,
        replace: bool = False,
        exclude: Sequence[str] = EXCLUDED,
    ) -> None:
        """Upload a directory, or a tar archive, as the project. It appears when it is complete.

        Args:
            replace: whether an earlier project is replaced.
            exclude: names of directories and files to leave out.

        Raises:
            Conflict: there is a project.
            BadRequest: an entry would leave the project.
            RequestError, ConnectionLost, SessionGone: as the other calls.
        """
        with await asyncio.to_thread(_archive, Path(local), frozenset(exclude)) as file:
            size = os.fstat(file.fileno()).st_size
            path = f"{await self._opened()}/project?replace={str(replace).lower()}"
            request = HTTPRequest(self._address, "PUT", path, _OPERATION_TIMEOUT)
            await upload(request, "the project", file, size, None)
        self._bases.clear()

    async def read(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        *,
        numbers: bool = True,
    ) -> CodeOperationResponse:
        """Read the lines of a text file, with their numbers, or as they are with `numbers=False`.

        `result` has `content`, `start`, `end`, `total_lines`, `truncated`, `encoding`, `size`, `sha256` and
        `binary`; a binary file has no content.
        """
        answer = await self._ask("read", path=path, start=start, end=end, numbers=numbers)
        self._remember(path, answer)
        return answer

    async def list(
        self, path: str = ".", glob: str | None = None, depth: int = 1
    ) -> CodeOperationResponse:
        """List a directory. `result` has `entries`, with `path`, `kind`, `size` and `modified_at`, and
        `truncated`."""
        return await self._ask("list", path=path, glob=glob, depth=depth)

    async def search(
        self,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        context: int = 0,
        regex: bool = True,
        max: int = 200,
    ) -> CodeOperationResponse:
        """Search with ripgrep. `result` has `matches` and `truncated`.

        A match has `path`, `line`, `text`, `columns`, `before` and `after`.
        """
        return await self._ask(
            "search", pattern=pattern, path=path, glob=glob, context=context, regex=regex, max=max
        )

    async def edit(
        self,
        path: str,
        content: str | None = None,
        *,
        old: str | None = None,
        new: str | None = None,
        count: int = 1,
        base: str | None = None,
    ) -> CodeOperationResponse:
        """Write a file, or replace a text in it, which must occur `count` times. `result` has the `diff`.

        Args:
            base: the `sha256` of an earlier answer; by default that of the last read or edit of this
                object.

        Raises:
            CodeOperationError: `no_match` with the nearest text, or `stale` if the file has changed
                since it was read.
        """
        base = base or self._bases.get(_normal(path))
        answer = await self._ask(
            "edit", path=path, content=content, old=old, new=new, count=count, base=base
        )
        self._remember(path, answer)
        return answer

    async def apply_patch(self, diff: str) -> CodeOperationResponse:
        """Apply a unified diff, all of it or nothing. `result` has `files` and `diff`."""
        answer = await self._ask("apply_patch", diff=diff)
        for each in answer.result.get("files", []):
            self._bases.pop(_normal(each), None)
        return answer

    async def run_tests(
        self,
        target: str | None = None,
        framework: Framework = "auto",
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> CodeOperationResponse:
        """Run the tests. `result` has `passed`, `failed`, `errors`, `skipped`, `failures` and `framework`.

        A failure has `test`, `file`, `line`, `message` and `output`.

        Args:
            target: a file, a directory, or a test as the framework names it.
            confirm: the `confirmation` of the ConfirmationRequired that this call got before.

        Raises:
            ConfirmationRequired: the broker's policy asks first.
            SandboxTimeoutError: its `result` has the tests that had ended, and which one was `running`.
        """
        return await self._run(
            "run_tests", target=target, framework=framework, timeout=timeout, confirm=confirm
        )

    async def build(
        self,
        command: str | None = None,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> CodeOperationResponse:
        """Build the project, by a command or the one that its files suggest. `result` has `exit_code`.

        Raises:
            ConfirmationRequired: as `run_tests`.
        """
        return await self._run("build", command=command, timeout=timeout, confirm=confirm)

    async def run(
        self, command: str, timeout: float | None = None, confirm: str | None = None
    ) -> CodeOperationResponse:
        """Run a shell command in the project. `result` has `exit_code`; its output is in `stdout` and
        `stderr`.

        Raises:
            ConfirmationRequired: as `run_tests`.
        """
        return await self._run("run", command=command, timeout=timeout, confirm=confirm)

    async def git_status(self) -> CodeOperationResponse:
        """`result` has `branch`, `files` with `path` and `status`, and `clean`."""
        return await self._ask("git_status")

    async def git_diff(
        self, base: str | None = None, staged: bool = False, paths: Sequence[str] | None = None
    ) -> CodeOperationResponse:
        """The changes since a commit, or of the working tree, as a patch: `result["diff"]`."""
        chosen = None if paths is None else [*paths]
        return await self._ask("git_diff", base=base, staged=staged, paths=chosen)

    async def git_log(self, max: int = 20, path: str | None = None) -> CodeOperationResponse:
        """The latest commits: `result["commits"]`."""
        return await self._ask("git_log", max=max, path=path)

    async def git_branch(
        self, name: str | None = None, create: bool = True
    ) -> CodeOperationResponse:
        """Switch to a branch, which is created if necessary; without a name, list the branches."""
        return await self._ask("git_branch", name=name, create=create)

    async def git_commit(
        self, message: str, paths: Sequence[str] | None = None
    ) -> CodeOperationResponse:
        """Commit all changes, or those of some paths. No hooks run. `result` has `commit`, `branch`
        and `files`."""
        return await self._ask(
            "git_commit", message=message, paths=None if paths is None else [*paths]
        )

    async def snapshot(self) -> CodeOperationResponse:
        """Remember the files of the project: `result["snapshot"]`, for `diff`. No git repository is
        needed."""
        return await self._ask("snapshot")

    async def diff(self, snapshot: str) -> CodeOperationResponse:
        """The changes of files since a snapshot. `result` has `diff`, `diff_truncated`, `files` and
        `files_truncated`."""
        return await self._ask("diff", snapshot=snapshot)

    async def git_bundle(
        self, base: str | None = None, branch: str | None = None
    ) -> CodeOperationResponse:
        """Write a bundle of a branch into the workspace: `session.files` downloads `result["file"]`.

        `git fetch FILE BRANCH` takes the commits out of it. `result` has `file`, `branch`, `commit` and
        `size`.

        Args:
            base: leave out what this commit has already.
            branch: the current one if None.
        """
        return await self._ask("git_bundle", base=base, branch=branch)

    async def git_push(self, branch: str | None = None) -> CodeOperationResponse:
        """Push a branch, by default the current one, to the forge that the project came from.

        The broker adds the operator's token. `result` has `branch`, `commit`, `repository` and `host`.

        Raises:
            SandboxSecurityError: the operator does not list the forge or the repository.
        """
        return await self._ask("git_push", branch=branch)

    async def git_create_pr(
        self, title: str, body: str = "", base: str | None = None
    ) -> CodeOperationResponse:
        """Push the current branch, and open a pull request for it. `result` has `number` and `url` too.

        Args:
            base: the branch to merge into; the repository's default one if None.

        Raises:
            CodeOperationError: `conflict` if there is one already, or nothing to merge.
            SandboxSecurityError: as `git_push`.
        """
        return await self._ask("git_create_pr", title=title, body=body, base=base)

    async def execute(self, operation: str, parameters: dict[str, Any]) -> CodeOperationResponse:
        """Run an operation by its name, as the broker names it."""
        if operation in RUNNING:
            return await self._run(operation, **parameters)
        return await self._ask(operation, **parameters)

    async def stream(
        self, operation: str, parameters: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run an operation, and yield its events as dicts; the last one has the type `result`.

        Tests yield `test_output` while they run. Output comes as `stdout` and `stderr`.
        """
        sandbox_id = await self.sandbox_id()
        try:
            async with await self._sent(operation, parameters, "application/x-ndjson") as request:
                line = b""
                while piece := await request.read_available():
                    *lines, line = (line + piece).split(b"\n")
                    for text in lines:
                        event = decode_json(text)
                        yield event
                        if event["type"] == "result":
                            return
        except (ConnectionLost, ConnectionFailed, RequestError) as exc:
            raise _translated(exc, sandbox_id, operation) from exc
        message = "the connection broke off; the operation may have run"
        raise SandboxConnectionError(message, sandbox_id, operation, "connection")

    async def sandbox_id(self) -> str:
        """The id of the session, which is open then, as errors have it."""
        return (await self._opened()).rpartition("/")[2]

    async def _run(self, operation: str, **parameters: Any) -> CodeOperationResponse:
        """Run an operation that is an execution, and collect its output."""
        output: dict[str, list[str]] = {"stdout": [], "stderr": []}
        last: dict[str, Any] = {}
        async with aclosing(self.stream(operation, parameters)) as events:
            async for event in events:
                if event["type"] in output:
                    output[event["type"]].append(event["content"])
                last = event
        answer = msgspec.convert(last, CodeOperationResponse)
        answer.stdout, answer.stderr = "".join(output["stdout"]), "".join(output["stderr"])
        return await self._checked(operation, answer)

    async def _ask(self, operation: str, **parameters: Any) -> CodeOperationResponse:
        """Run an operation that answers at once."""
        attempt = 0
        while True:
            attempt += 1
            try:
                async with await self._sent(operation, parameters, "application/json") as request:
                    body = await request.read_all(_MAX_ANSWER)
                answer = decode_json(body, CodeOperationResponse)
                break
            except (ConnectionLost, msgspec.DecodeError) as exc:
                if operation not in READING or attempt >= ATTEMPTS:
                    sandbox_id = await self.sandbox_id()
                    raise SandboxConnectionError(
                        f"{exc}; the operation may have run", sandbox_id, operation, "connection"
                    ) from exc
                await self._pause(attempt)
            except (ConnectionFailed, RequestError) as exc:
                sandbox_id = await self.sandbox_id()
                raise _translated(exc, sandbox_id, operation) from exc
        return await self._checked(operation, answer)

    async def _sent(self, operation: str, parameters: dict[str, Any], accept: str) -> HTTPRequest:
        """A request that was answered. The connection alone is tried again: nothing was sent then."""
        body = encode({name: value for name, value in parameters.items() if value is not None})
        path = f"{await self._opened()}/operations/{quote(operation, safe='')}"
        timeout = _SILENCE_TIMEOUT if operation in RUNNING | BROWSING else _OPERATION_TIMEOUT
        head = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept": accept,
        }
        attempt = 0
        while True:
            attempt += 1
            request = HTTPRequest(self._address, "POST", path, timeout)
            try:
                await request.begin(head)
                break
            except ConnectionFailed:
                await request.__aexit__(None, None, None)
                if attempt >= ATTEMPTS:
                    raise
                await self._pause(attempt)
        try:
            await request.send(body)
            await request.answer()
        except BaseException:
            await request.__aexit__(None, None, None)
            raise
        return request

    async def _pause(self, attempt: int) -> None:
        shortest, longest = self._pauses
        await asyncio.sleep(min(shortest * 2 ** (attempt - 1), longest))

    async def _checked(
        self, operation: str, answer: CodeOperationResponse
    ) -> CodeOperationResponse:
        """The answer, unless the operation was refused."""
        if not answer.success and not (operation in RUNNING and answer.code == FAILED):
            sandbox_id = await self.sandbox_id()
            message = answer.error or "it failed"
            raise error_of(answer.code or FAILED, message, sandbox_id, operation, answer.result)
        return answer

    def _remember(self, path: str, answer: CodeOperationResponse) -> None:
        self._bases[_normal(path)] = answer.result["sha256"]
        if len(self._bases) > _MAX_BASES:
            del self._bases[next(iter(self._bases))]


def _translated(
    exc: ConnectionLost | ConnectionFailed | RequestError, sandbox_id: str, operation: str
) -> Exception:
    """An error of the connection or the broker as one of an operation; tokens and sessions keep theirs."""
    if isinstance(exc, SessionGone | Unauthorized):
        return exc
    if isinstance(exc, ConfirmationRequired):
        return OperationConfirmationRequired(exc, sandbox_id, operation)
    if isinstance(exc, RequestError):
        return error_of(exc.code, exc.message, sandbox_id, operation)
    return SandboxConnectionError(str(exc), sandbox_id, operation, "connection")


def _normal(path: str) -> str:
    path = path.removeprefix("/workspace/project/").removeprefix("/data/project/")
    return os.path.normpath(path)


def _archive(local: Path, exclude: frozenset[str]) -> IO[bytes]:
    """A compressed tar of a directory in a temporary file, or the archive itself."""
    if local.is_file():
        return local.open("rb")
    if not local.is_dir():
        raise NotADirectoryError(f"{local}: the project is a directory, or a tar archive")
    file = tempfile.TemporaryFile()  # noqa: SIM115  closed by the caller

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        tar.inodes.clear()  # type: ignore[attr-defined]  # a second name of a file is sent as a file
        known = entry.isfile() or entry.isdir() or entry.issym()
        return entry if known and not exclude & {*entry.name.split("/")} else None

    try:
        with (
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as compressed,
            tarfile.open(fileobj=compressed, mode="w|", dereference=False) as tar,
        ):
            tar.add(local, arcname=".", filter=wanted)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


__all__ = ["Code", "CodeOperationError", "CodeOperationResponse"]
