"""Operations on the project of a session, without `await`."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

from .. import code
from ..loop_thread import LoopThread
from ..protocol.operations import CodeOperationResponse


class Code:
    """See `kernelbroker.Code`."""

    def __init__(self, asynchronous: code.Code, thread: LoopThread) -> None:
        self._async = asynchronous
        self._thread = thread

    def upload(
        self,
        local: str | os.PathLike[str],
        *,
        replace: bool = False,
        exclude: Sequence[str] = code.EXCLUDED,
    ) -> None:
        self._thread.call(self._async.upload(local, replace=replace, exclude=exclude))

    def read(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        *,
        numbers: bool = True,
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.read(path, start, end, numbers=numbers))

    def list(
        self, path: str = ".", glob: str | None = None, depth: int = 1
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.list(path, glob, depth))

    def search(
        self,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        context: int = 0,
        regex: bool = True,
        max: int = 200,
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.search(pattern, path, glob, context, regex, max))

    def edit(
        self,
        path: str,
        content: str | None = None,
        *,
        old: str | None = None,
        new: str | None = None,
        count: int = 1,
        base: str | None = None,
    ) -> CodeOperationResponse:
        return self._thread.call(
            self._async.edit(path, content, old=old, new=new, count=count, base=base)
        )

    def apply_patch(self, diff: str) -> CodeOperationResponse:
        return self._thread.call(self._async.apply_patch(diff))

    def run_tests(
        self,
        target: str | None = None,
        framework: code.Framework = "auto",
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.run_tests(target, framework, timeout, confirm))

    def build(
        self,
        command: str | None = None,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.build(command, timeout, confirm))

    def run(
        self, command: str, timeout: float | None = None, confirm: str | None = None
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.run(command, timeout, confirm))

    def git_status(self) -> CodeOperationResponse:
        return self._thread.call(self._async.git_status())

    def git_diff(
        self, base: str | None = None, staged: bool = False, paths: Sequence[str] | None = None
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.git_diff(base, staged, paths))

    def git_log(self, max: int = 20, path: str | None = None) -> CodeOperationResponse:
        return self._thread.call(self._async.git_log(max, path))

    def git_branch(self, name: str | None = None, create: bool = True) -> CodeOperationResponse:
        return self._thread.call(self._async.git_branch(name, create))

    def git_commit(self, message: str, paths: Sequence[str] | None = None) -> CodeOperationResponse:
        return self._thread.call(self._async.git_commit(message, paths))

    def snapshot(self) -> CodeOperationResponse:
        return self._thread.call(self._async.snapshot())

    def diff(self, snapshot: str) -> CodeOperationResponse:
        return self._thread.call(self._async.diff(snapshot))

    def git_bundle(
        self, base: str | None = None, branch: str | None = None
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.git_bundle(base, branch))

    def git_push(self, branch: str | None = None) -> CodeOperationResponse:
        return self._thread.call(self._async.git_push(branch))

    def git_create_pr(
        self, title: str, body: str = "", base: str | None = None
    ) -> CodeOperationResponse:
        return self._thread.call(self._async.git_create_pr(title, body, base))

    def execute(self, operation: str, parameters: dict[str, Any]) -> CodeOperationResponse:
        return self._thread.call(self._async.execute(operation, parameters))

    def stream(
        self, operation: str, parameters: dict[str, Any]
    ) -> Generator[dict[str, Any], None, None]:
        return self._thread.iterate(self._async.stream(operation, parameters))
