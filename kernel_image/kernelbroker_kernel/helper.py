"""The IPython extension inside the kernel: what every execution needs before and after its cell.

Before: the execution's own working directory and environment variables. After: these undone, the
new names of a failed cell removed, and one message with the cell's duration, the variables and the
changed files. All of it is bounded, costs a third of a millisecond in an ordinary session, and never
makes a cell fail. What was asked for rides in the request's metadata, as `contract` says; what does
not fit is ignored. The value of `result_var` is not sent here but by `report`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from IPython.core.error import InputRejected
from IPython.core.getipython import get_ipython

from . import environment, package_path, variables
from .contract import METADATA_KEY, SUMMARY_MIME
from .environment import WORKSPACE
from .files import Snapshot, changes, scan
from .streams import make_blocking

MAX_VARIABLES = 100
# Names that IPython or the interpreter make while a cell runs.
_IPYTHON_NAME = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_[iod]h|_exit_code|In|Out|exit|quit|open|get_ipython|__\w+__"
)


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython when the kernel starts. Loading it again changes nothing."""
    if installed(shell) is None:
        shell.kernelbroker_helper = helper = Helper(shell)
        shell.events.register("pre_run_cell", helper.pre_run_cell)
        shell.events.register("post_run_cell", helper.post_run_cell)
        shell.ast_transformers.append(helper)


def installed(shell: Any) -> Helper | None:
    """The helper of this shell, if it is loaded."""
    return getattr(shell, "kernelbroker_helper", None)


def configure() -> None:
    """Entry point of `contract.CONFIGURE_CODE`: set the session's environment and directory.

    Raises ValueError or OSError, which the broker sees as the reply.
    """
    environment.configure(asked_for(get_ipython()).get("configure"))


def asked_for(shell: Any) -> dict[str, Any]:
    """What the request that is running asks of us; empty where that is nothing."""
    request = shell.get_parent()
    metadata = request.get("metadata") if isinstance(request, dict) else None
    asked = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    return asked if isinstance(asked, dict) else {}


def publish(shell: Any, mime: str, payload: dict[str, Any]) -> None:
    """Send one display message of ours.

    Straight to the kernel's socket: the display publisher would first wait for the output streams
    to be flushed, and user code may have replaced it.
    """
    content = {"data": {mime: payload}, "metadata": {}, "transient": {}}
    kernel = shell.kernel
    kernel.session.send(
        kernel.iopub_socket,
        "display_data",
        content,
        parent=shell.get_parent(),
        ident=b"display_data",
    )


class InvalidExecution(InputRejected):
    """The cell was not run, because what was asked for it cannot be had."""

    def _render_traceback_(self) -> list[str]:
        return [
            f"{type(self).__name__}: {self}"
        ]  # IPython's own frames would tell the user nothing


@dataclass(slots=True)
class _Execution:
    """What has to be known of a cell until it ends."""

    request_id: str
    raw_cell: str
    names: frozenset[str]
    override: environment.Override
    files: Snapshot
    started_at: float = 0.0


class Helper:
    """The hooks of one shell, and what lasts from cell to cell.

    Attributes:
        failed: how the last cell of the user's ended.
        exit_code: of the program that it ran, where it is in another language.
        foreign_names: in the place of Python's names, what such a cell has to report.
        node: the session's Node.js, once a cell has needed it.
    """

    def __init__(self, shell: Any) -> None:
        self.failed = False
        self.exit_code: int | None = None
        self.foreign_names: dict[str, Any] | None = None
        self.node: Any = None
        self._shell = shell
        self._execution: _Execution | None = None
        self._refusal: InvalidExecution | None = None

    def pre_run_cell(self, info: Any) -> None:
        shell = self._shell
        request_id = _request_id(shell)
        if self._execution is not None:
            if self._execution.request_id == request_id:
                return  # a cell that the user's cell runs
            self._execution.override.undo()  # its end was lost to an interrupt
        package_path.refresh()
        make_blocking()
        asked = asked_for(shell)
        override = environment.Override(asked.get("cwd"), asked.get("env"))
        self._execution = execution = _Execution(
            request_id, info.raw_cell, frozenset(shell.user_ns), override, scan(WORKSPACE)
        )
        self._refusal = None
        self.exit_code, self.foreign_names = None, None
        try:
            override.apply()
        except (OSError, ValueError) as error:
            self._refusal = InvalidExecution(error)
        execution.started_at = perf_counter()

    def visit(self, tree: Any) -> Any:
        """Refuses the cell, if it must not run.

        Being an AST transformer that changes nothing is the one way IPython has to keep a cell from
        running with an error of ours: it prints what a callback of an event raises, and goes on.
        """
        if self._refusal is not None:
            raise self._refusal
        return tree

    def post_run_cell(self, result: Any) -> None:
        ended_at = perf_counter()
        try:
            try:
                self._end(result, ended_at)
            except KeyboardInterrupt:  # too late for the cell; from here on none comes any more
                self._end(result, ended_at)
        except Exception:
            self._shell.log.exception("the end of an execution could not be reported")

    def _end(self, result: Any, ended_at: float) -> None:
        execution = self._execution
        # By identity: where IPython itself was interrupted, the result has an `info` of its own.
        if execution and result is not None and result.info.raw_cell is not execution.raw_cell:
            return  # a cell that the user's cell ran
        shell = self._shell
        shell.kernel.code_is_over()
        self._execution = self._refusal = None
        asked = asked_for(shell)
        self.failed = (
            result is None
            or not result.success
            or bool(getattr(shell, "_last_traceback_during_displayhook", False))
        )
        summary: dict[str, Any] = {"execution_time": 0.0, "files": [], "files_truncated": False}
        if execution is not None:  # IPython does not announce an empty cell, it only ends it
            execution.override.undo()
            if self.failed and asked.get("on_error") != "keep":
                _remove_new_names(shell.user_ns, execution.names)
            summary["execution_time"] = ended_at - execution.started_at
            changed, truncated = changes(execution.files, scan(WORKSPACE))
            summary |= {"files": changed, "files_truncated": truncated}
        limit = asked.get("max_variables")
        limit = limit if type(limit) is int and limit >= 0 else MAX_VARIABLES
        held, dropped = variables.summarize(shell.user_ns, shell.user_ns_hidden, limit)
        summary |= {"variables": held, "variables_dropped": dropped}
        summary["exit_code"] = self.exit_code
        publish(shell, SUMMARY_MIME, summary)


def _request_id(shell: Any) -> str:
    request = shell.get_parent()
    return str(request["header"]["msg_id"]) if request else ""


def _remove_new_names(user_ns: dict[str, Any], before: frozenset[str]) -> None:
    for name in user_ns.keys() - before:
        if type(name) is not str or not _IPYTHON_NAME.fullmatch(name):
            user_ns.pop(name, None)
