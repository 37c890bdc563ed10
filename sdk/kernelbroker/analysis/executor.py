"""Runs a model's code, and has the model correct it when it fails."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import cells, prompts
from .cells import TIMEOUT, Inputs, Ran
from .clients import Client, Sessions
from .correcting import MAX_CORRECTIONS, History, run_corrected
from .models import ask
from .paths import PathMapper

if TYPE_CHECKING:
    import pandas

    from ..session import Session


class CodeExecutor:
    """Runs code in one session, with corrections by a model.

    Args:
        client: a `Broker`, a `Session` or a `SandboxClient`.
        llm: corrects code; a function of a prompt, or a client that `chat_model` takes. Without one, code
            that fails is not corrected.
        max_retry_execution_count: corrections after the first attempt.

    Attributes:
        error_history: the failed attempts of the last call, oldest first: `code` and `error`.
    """

    def __init__(
        self,
        client: Client,
        llm: Any = None,
        max_retry_execution_count: int = MAX_CORRECTIONS,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self._sessions = Sessions(client)
        self._session: Session | None = None
        self._llm = llm
        self._max_corrections = max(0, max_retry_execution_count)
        self._timeout = timeout
        self._tables: list[cells.Table] = []
        self.error_history: History = []

    async def execute_analysis(
        self, question: str, code: str, file_path: str | None = None
    ) -> pandas.DataFrame:
        """Run code, and return its whole result.

        The result is what `analyze(df)` returns, if the code defines it; else the variable `result`, if the
        code sets it; else the value of the last expression. Of a dict it is the `data`. A single value
        is a table of one row.

        Args:
            question: what the code shall answer; for the model that corrects it.
            file_path: the file that is read as `df`, as in `analyze_data`. By default it is the
                session's variable `df`.

        Returns:
            The table; an empty one if no attempt succeeded: see `error_history`.
        """
        import pandas

        session, inputs = await self._begin([file_path] if file_path else [])
        if inputs.error is not None:
            self.error_history.append({"code": code, "error": inputs.error})
            return pandas.DataFrame()
        frame = f"_kb_frames[{inputs.key!r}][0]" if file_path else "df"

        async def run(code: str) -> Ran:
            code, expression = _result_of(code, frame)
            whole = "_kb_whole = _kb_table(result)"
            return await cells.call(session, code, expression, self._timeout, then=whole)

        ran = await self._corrected(question, code, run)
        if ran.error is not None:
            return pandas.DataFrame()
        return await session.table("_kb_whole", lossy=True)

    async def execute_operation(
        self,
        instruction: str,
        code: str,
        output_path: str,
        input_paths: Sequence[str] = (),
    ) -> bool:
        """Run code that writes a file, and return whether it has.

        The code defines `operation(dataframes, input_paths, output_path)`, or writes the file itself: the
        variables `dataframes`, `input_paths` and `output_path` are set.
        """
        session, inputs = await self._begin(input_paths)
        if inputs.error is not None:
            self.error_history.append({"code": code, "error": inputs.error})
            return False
        mapper = PathMapper(session.session_id)
        sources = [mapper.map_input_path(each) for each in input_paths]
        target = mapper.map_output_path(output_path)
        await session.run(
            f"dataframes = _kb_frames[{inputs.key!r}]\ninput_paths = {cells.literal(sources)}\n"
            f"output_path = {cells.literal(target)}\n_kb_before = _kb_prepare(output_path)\n"
        )

        async def run(code: str) -> Ran:
            has_function = cells.binds(code, "operation")
            called = "operation(dataframes, input_paths, output_path)" if has_function else "None"
            expression = f"_kb_written({called}, _kb_before, {cells.literal(target)})"
            return cells.with_written(
                await cells.call(session, code, expression, self._timeout), target
            )

        ran = await self._corrected(instruction, code, run)
        return ran.error is None

    async def _begin(self, paths: Sequence[str]) -> tuple[Session, Inputs]:
        self.error_history = []
        if self._session is None:
            self._session = await self._sessions.get()
        mapper = PathMapper(self._session.session_id)
        mapped = [mapper.map_input_path(each) for each in paths]
        inputs = await cells.load(self._session, mapped, self._timeout)
        self._tables = inputs.tables
        return self._session, inputs

    async def _corrected(self, task: str, code: str, run: Any) -> Ran:
        async def correct(history: History) -> str | None:
            return await self._correct_code(task, history)

        return await run_corrected(code, run, correct, self.error_history, self._max_corrections)

    async def _correct_code(self, question: str, error_history: History) -> str | None:
        """Ask the model for corrected code, with the errors, and the variables and columns that exist.

        Returns:
            None without a model.
        """
        if self._llm is None:
            return None
        assert self._session is not None, "an attempt has failed in it"
        found = await self._session.run(
            "_kb_found = _kb_variables(globals())", result_var="_kb_found", timeout=self._timeout
        )
        known = found.return_value if isinstance(found.return_value, dict) else {}
        tables = [cells.Table(**each) for each in known.get("tables", [])]
        variables = [str(each) for each in known.get("variables", [])]
        prompt = prompts.for_correction(
            question, error_history, variables, [*self._tables, *tables]
        )
        return await ask(self._llm, prompt)


def _result_of(code: str, frame: str) -> tuple[str, str]:
    """The code, and the expression that is its result. Lines keep their numbers."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's code
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code, "result"
    for node in reversed(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "analyze":
            has_arguments = bool(node.args.posonlyargs or node.args.args or node.args.vararg)
            call = f"analyze({frame})" if has_arguments else "analyze()"
            return code, f"await {call}" if isinstance(node, ast.AsyncFunctionDef) else call
    if cells.binds(code, "result") or not body or not isinstance(body[-1], ast.Expr):
        return code, "result"
    last = body[-1]
    lines = code.splitlines(keepends=True)
    at = last.lineno - 1
    line = lines[at].encode()
    lines[at] = (line[: last.col_offset] + b"result = (" + line[last.col_offset :]).decode()
    end = last.end_lineno - 1 if last.end_lineno else at
    stop = (last.end_col_offset or 0) + (len(b"result = (") if end == at else 0)
    line = lines[end].encode()
    lines[end] = (line[:stop] + b")" + line[stop:]).decode()
    return "".join(lines), "result"
