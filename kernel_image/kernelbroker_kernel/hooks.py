"""The hooks of IPython that run before and after each cell, as an extension.

Before a cell they apply the execution's working directory and environment variables. After it they
undo these, remove names that a failed cell created (see `rollback`), and make a summary with the
duration, the variables and the changed files, which goes out with the reply. The work is bounded, takes
a third of a millisecond in an ordinary session, and never makes a cell fail. `contract` describes the
options in the request's metadata; invalid ones are ignored. The value of `result_var` is sent by `report`.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass
from os import environ
from time import perf_counter
from typing import Any

from IPython.core.error import InputRejected
from IPython.core.getipython import get_ipython

from . import e2b_forms, environment, package_path, variables
from .cell_output import CellOutput
from .changed_files import WorkspaceChanges
from .compat.kernel import failed_while_showing
from .contract import METADATA_KEY
from .environment import WORKSPACE
from .rollback import remove_new_names
from .streams import make_blocking
from .time_limit import time_limit

MAX_VARIABLES = 100
_MAX_NAME_CHARS = 1_000
REMOVAL_S = 1.0
"""The time for removing the names of a failed cell, which may run `__del__`."""
_MAX_TREES = 1_000
"""The number of cells that one cell runs (as `%%time` does) whose statements count for the rollback."""


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython when the kernel starts. Loading it again does nothing."""
    if installed(shell) is None:
        shell.kernelbroker_hooks = hooks = CellHooks(shell)
        shell.events.register("pre_run_cell", hooks.pre_run_cell)
        shell.events.register("post_run_cell", hooks.post_run_cell)
        shell.ast_transformers.append(hooks)


def installed(shell: Any) -> CellHooks | None:
    """The hooks of this shell, if they are loaded."""
    return getattr(shell, "kernelbroker_hooks", None)


def configure() -> None:
    """Entry point of `contract.CONFIGURE_CODE`: set the session's environment and directory.

    Raises ValueError or OSError, which the broker gets in the reply.
    """
    shell = get_ipython()
    environment.configure(request_options(shell).get("configure"))
    if e2b_forms.is_asked_for():
        e2b_forms.install(shell)


def request_options(shell: Any) -> dict[str, Any]:
    """The options in the metadata of the running request; empty if there are none."""
    options = _metadata(shell).get(METADATA_KEY)
    return options if isinstance(options, dict) else {}


def is_ours(shell: Any) -> bool:
    """Whether the running cell is one of the broker's clients. Others expect a stock kernel."""
    return METADATA_KEY in _metadata(shell) and request_options(shell).get("notebook") is not True


def _metadata(shell: Any) -> dict[str, Any]:
    request = shell.get_parent()
    metadata = request.get("metadata") if isinstance(request, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def publish(shell: Any, mime: str, payload: dict[str, Any]) -> None:
    """Send one display message to the broker.

    It goes straight to the kernel's socket: the display publisher would first wait for the output
    streams to be flushed, and user code may have replaced it.
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
    """The cell is not run, since its options cannot be applied."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]  # IPython's frames do not help the user


@dataclass(slots=True)
class _Execution:
    """The state of a running cell."""

    request_id: str
    raw_cell: str
    names: frozenset[str]
    trees: list[ast.AST]
    override: environment.Override
    started_at: float = 0.0


class CellHooks:
    """The hooks of one shell, and the state that lasts from cell to cell.

    Attributes:
        failed: whether the last user's cell failed.
        exit_code: of the program that ran a cell in another language, or of the cell's `sys.exit`.
        reported_names: the variables of a cell in another language, for its report.
        node: the session's Node.js process, once a cell has started it.
        environ: the environment variables at the kernel's start.
        summary: of the user's cell that has ended, until its reply takes it; see `contract`.
    """

    def __init__(self, shell: Any) -> None:
        self.failed = False
        self.exit_code: int | None = None
        self.reported_names: dict[str, Any] | None = None
        self.node: Any = None
        self.environ = environment.at_start = dict(environ)
        self._output = CellOutput()
        self._files = WorkspaceChanges(WORKSPACE)
        self.summary: dict[str, Any] | None = None
        self._shell = shell
        self._exited = False
        self._execution: _Execution | None = None
        self._refusal: InvalidExecution | None = None

    def pre_run_cell(self, info: Any) -> None:
        shell = self._shell
        request_id = _request_id(shell)
        if self._execution is not None:
            if self._execution.request_id == request_id:
                return  # a cell that the user's cell runs
            self._execution.override.undo()  # an interrupt kept `post_run_cell` from being called
        package_path.refresh()
        make_blocking()
        options = request_options(shell)
        override = environment.Override(options.get("cwd"), options.get("env"))
        self._execution = execution = _Execution(
            request_id, info.raw_cell, frozenset(shell.user_ns), [], override
        )
        workspace = options.get("workspace")
        workspace = workspace if isinstance(workspace, dict) else {}
        self._files.begin(
            known=workspace.get("known") is True, watch=workspace.get("watch") is True
        )
        self._refusal = None
        self.exit_code, self.reported_names, self._exited = None, None, False
        try:
            override.apply()
        except (OSError, ValueError) as error:
            self._refusal = InvalidExecution(error)
        execution.started_at = perf_counter()

    def visit(self, tree: Any) -> Any:
        """Refuse the cell, if its options cannot be applied; called as an AST transformer.

        IPython prints errors of an event's callback and goes on. An error of a transformer is the only way
        to keep a cell from running.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._execution is not None and len(self._execution.trees) < _MAX_TREES:
            self._execution.trees.append(tree)
        return tree

    def post_run_cell(self, result: Any) -> None:
        ended_at = perf_counter()
        try:
            try:
                self._end(result, ended_at)
            except (
                KeyboardInterrupt
            ):  # too late for the cell; no further one comes after `code_is_over`
                self._end(result, ended_at)
        except BaseException:  # IPython would end the kernel by a SystemExit
            self._shell.log.exception("the end of an execution could not be reported")

    def _end(self, result: Any, ended_at: float) -> None:
        execution = self._execution
        # Compared by identity. If IPython itself was interrupted, the result has an `info` of its own.
        if execution and result is not None and result.info.raw_cell is not execution.raw_cell:
            return  # a cell that the user's cell ran
        shell = self._shell
        shell.kernel.code_is_over()
        self._output.flush()
        if is_ours(shell) and (replaced := self._output.restore()):
            self._output.tell(replaced)
        self._execution = self._refusal = None
        options = request_options(shell)
        status = None if result is None else exit_status(result.error_in_exec)
        self._exited = status is not None and is_ours(shell)
        if self._exited:
            self.exit_code = status
        self.failed = result is None or not result.success or failed_while_showing(shell)
        if self.ended_cleanly:
            self.failed = False
        removed: list[str] = []
        summary: dict[str, Any] = {"execution_time": 0.0, "files": [], "files_truncated": False}
        if execution is not None:  # IPython calls no `pre_run_cell` for an empty cell
            execution.override.undo()
            on_error = options.get("on_error")
            # What an interrupted cell has computed is what the user has waited for.
            keeps = on_error == "keep" or (
                shell.kernel.was_interrupted and on_error != "rollback_all"
            )
            if self.failed and is_ours(shell) and not keeps:
                defining = [] if on_error == "rollback_all" else execution.trees
                with suppress(BaseException), time_limit(REMOVAL_S):
                    remove_new_names(shell.user_ns, execution.names, defining, removed)
            summary["execution_time"] = ended_at - execution.started_at
            changed, truncated = self._files.end()
            summary |= {"files": changed, "files_truncated": truncated}
        limit = options.get("max_variables")
        limit = limit if type(limit) is int and limit >= 0 else MAX_VARIABLES
        held, dropped = variables.summarize(shell.user_ns, shell.user_ns_hidden, limit)
        summary |= {"variables": held, "variables_dropped": dropped}
        summary["exit_code"] = self.exit_code
        summary["removed"] = [name[:_MAX_NAME_CHARS] for name in removed[:MAX_VARIABLES]]
        self.summary = summary

    @property
    def ended_cleanly(self) -> bool:
        """Whether the user's cell has ended itself by `sys.exit()`, without an error."""
        return self._exited and self.exit_code == 0

    def take_summary(self) -> dict[str, Any] | None:
        """Return the summary once; None if there is none, as for a silent cell."""
        summary, self.summary = self.summary, None
        return summary


def exit_status(error: BaseException | None) -> int | None:
    """The exit status of `sys.exit`, as of a program; None for any other error."""
    if not isinstance(error, SystemExit):
        return None
    code = error.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _request_id(shell: Any) -> str:
    request = shell.get_parent()
    return str(request["header"]["msg_id"]) if request else ""
