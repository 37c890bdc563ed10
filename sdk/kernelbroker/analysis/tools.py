"""The tools of an analyst: `analyze_data` and `table_operation`.

The code that they run is the caller's, one of the usual analyses, or a model's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from . import cells, prompts, usual
from .answers import Answer, of_analysis, of_operation, refused
from .cells import TIMEOUT, Ran, Runner
from .clients import Client, Sessions
from .correcting import History, run_corrected
from .language import Choice, chosen
from .models import ask
from .paths import PathMapper


class AnalysisTools:
    """The tools with a client and a model.

    Args:
        client: a `Broker`, a `Session` or a `SandboxClient`. With a broker, a call without `session_id`
            opens a session; it stays open until the broker's client is closed.
        llm: a model that writes code for calls without code; see `chat_model`.
        language: of the answers; `auto` by the script of the question and the columns.
    """

    def __init__(self, client: Client, llm: Any = None, language: Choice = "auto") -> None:
        self._sessions = Sessions(client)
        self._llm = llm
        self._language: Choice = language

    async def analyze_data(
        self,
        file_path: str,
        analysis_type: str,
        question: str | None = None,
        code: str | None = None,
        session_id: str | None = None,
    ) -> Answer:
        """Analyse a data file. See the function `analyze_data`."""
        session = await self._sessions.get(session_id)
        return await analyze_data(
            session,
            file_path,
            analysis_type,
            question,
            code,
            llm=self._llm,
            language=self._language,
        )

    async def table_operation(
        self,
        instruction: str,
        input_paths: Sequence[str],
        output_path: str,
        code: str | None = None,
        session_id: str | None = None,
    ) -> Answer:
        """Make a file from data files. See the function `table_operation`."""
        session = await self._sessions.get(session_id)
        return await table_operation(
            session,
            instruction,
            input_paths,
            output_path,
            code,
            llm=self._llm,
            language=self._language,
        )


async def analyze_data(
    runner: Runner,
    file_path: str,
    analysis_type: str,
    question: str | None = None,
    code: str | None = None,
    *,
    llm: Any = None,
    language: Choice = "auto",
    timeout: float = TIMEOUT,
    paths: PathMapper | None = None,
) -> Answer:
    """Analyse a data file in a session. A failure is an answer, too.

    Args:
        file_path: `uploads/...`, `datasets/...` or absolute; `book.xlsx#Sheet2` for one sheet.
        analysis_type: `descriptive` (or `describe`), `missing`, `correlation`, `group`, `trend`, `outliers`
            or `distribution`, which need no code; or any words.
        code: defines `analyze(df)`, whose return value becomes the variable `result`.
        timeout: seconds for each cell.

    Returns:
        `session_id`, `success`, `execution_time`, `output`, `dataframe`, `data`, `error`, each if it
        exists.
    """
    session_id = runner.session_id
    if code is not None and not cells.binds(code, "analyze"):
        return refused(session_id, prompts.needs_analyze("the code does not define analyze(df)"))
    kind = usual.kind_of(analysis_type)
    if code is None and kind is None and llm is None:
        reason = (
            f"{analysis_type!r} is none of the usual analyses ({', '.join(usual.KINDS)}), and there is "
            "no model here that writes code"
        )
        return refused(session_id, prompts.needs_analyze(reason))
    try:
        path = (paths or PathMapper(session_id)).map_input_path(file_path)
    except ValueError as exc:
        return refused(session_id, str(exc))
    inputs = await cells.load(runner, [path], timeout)
    if inputs.error is not None:
        return refused(session_id, inputs.error, inputs.seconds)
    table = inputs.tables[0]
    words = chosen(language, [question, *table.columns])
    expression = f"analyze(_kb_frames[{inputs.key!r}][0])"

    async def run(code: str) -> Ran:
        return await cells.call(runner, code, expression, timeout)

    if code is None and kind is not None and (llm is None or not question):
        code = usual.code(kind, words)
    if code is None:
        prompt = prompts.for_analysis(analysis_type, question, table, words)
        ran = await _written(llm, prompt, question or analysis_type, run, inputs.tables)
    else:
        ran = await run(code)
    return of_analysis(session_id, inputs, ran, words)


async def table_operation(
    runner: Runner,
    instruction: str,
    input_paths: Sequence[str],
    output_path: str,
    code: str | None = None,
    *,
    llm: Any = None,
    language: Choice = "auto",
    timeout: float = TIMEOUT,
    paths: PathMapper | None = None,
) -> Answer:
    """Make a file from data files in a session. A failure is an answer, too.

    Args:
        input_paths: as the `file_path` of `analyze_data`.
        output_path: absolute, or below `outputs/`. Its directories are made.
        code: defines `operation(dataframes, input_paths, output_path)`, which writes the file.
            `dataframes` has a table for each input, and for each sheet of a workbook, also by file name.

    Returns:
        `session_id`, `success`, `output`, `output_path`, `execution_time`, `error`, each if it exists.
    """
    session_id = runner.session_id
    if code is not None and not cells.binds(code, "operation"):
        reason = "the code does not define operation(dataframes, input_paths, output_path)"
        return refused(session_id, prompts.needs_operation(reason))
    if code is None and llm is None:
        reason = "there is no model here that writes code"
        return refused(session_id, prompts.needs_operation(reason))
    mapper = paths or PathMapper(session_id)
    try:
        sources = [mapper.map_input_path(each) for each in input_paths]
        target = mapper.map_output_path(output_path)
    except ValueError as exc:
        return refused(session_id, str(exc))
    inputs = await cells.load(runner, sources, timeout)
    if inputs.error is not None:
        return refused(session_id, inputs.error, inputs.seconds)
    expression = (
        f"_kb_operate(operation, _kb_frames[{inputs.key!r}], {cells.literal(sources)}, "
        f"{cells.literal(target)})"
    )

    async def run(code: str) -> Ran:
        ran = await cells.call(runner, code, expression, timeout)
        return cells.with_written(ran, target)

    if code is None:
        columns = [column for table in inputs.tables for column in table.columns]
        words = chosen(language, [instruction, *columns])
        prompt = prompts.for_operation(instruction, inputs.tables, target, words)
        ran = await _written(llm, prompt, instruction, run, inputs.tables)
    else:
        ran = await run(code)
    return of_operation(session_id, inputs, ran, target)


async def _written(
    llm: Any,
    prompt: str,
    task: str,
    run: Callable[[str], Awaitable[Ran]],
    tables: list[cells.Table],
) -> Ran:
    """Run code that a model writes and, if it fails, corrects."""

    async def correct(history: History) -> str:
        return await ask(llm, prompts.for_correction(task, history, [], tables))

    return await run_corrected(await ask(llm, prompt), run, correct, [])
