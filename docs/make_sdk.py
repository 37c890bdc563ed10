"""Writes docs/sdk.md from the SDK itself: signatures, docstrings, and the examples below.

    make docs

A test fails if the page is not up to date, and another one runs the examples.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import kernelbroker
import msgspec
from kernelbroker import events
from kernelbroker.protocol import errors

PAGE = Path(__file__).with_name("sdk.md")
MODULES_PAGE = Path(__file__).with_name("sdk-modules.md")

_INTRODUCTION = """# SDK reference

*Made from the SDK by `make docs`; do not edit.*

`pip install .` in a checkout installs the SDK, `pip install '.[pandas]'` what whole tables need, and
`pip install '.[risk]'` what `assess` needs for shell and JavaScript. No package index has it yet. On other
machines, install it from a broker:
`pip install http://BROKER:8720/docs/wheels/kernelbroker-1.0.0-py3-none-any.whl`.

In the examples `pathlib` is imported, `broker` is a `kernelbroker.Broker`, and `session` is one of its
sessions:

    async with kernelbroker.connect() as broker, broker.session() as session:
        ...

`kernelbroker.sync` has the same names without `await`: `connect`, `Broker`, `Session`, `ExecutionHandle`,
`Files` and `SandboxClient`. `kernelbroker.agents` has [requests, actions and a
tool](agents.md#requests-actions-and-a-tool) for agents. Durations are seconds,
sizes are bytes, times are `datetime`s in UTC.
"""

EXAMPLES: dict[str, tuple[str, str]] = {
    "connect": (
        "async with kernelbroker.connect(timeout=10) as other:\n"
        '    print((await other.health())["status"])',
        "ok",
    ),
    "Broker.session": (
        'async with broker.session("report", idle_timeout=600) as report:\n'
        "    print(report.session_id, report.info.state)",
        "report idle",
    ),
    "Broker.attach": (
        'async with broker.session("kept", keep=True) as first:\n'
        '    await first.run("x = 42")\n'
        'async with await broker.attach("kept", keep=False) as again:\n'
        '    print(await again.run("x"))\n'
        "try:\n"
        '    await broker.attach("nobody")\n'
        "except kernelbroker.NotFound as error:\n"
        "    print(error)",
        "42\nthere is no session nobody",
    ),
    "Broker.sessions": (
        "for info in await broker.sessions():\n    print(info.template, info.state)",
        "default idle",
    ),
    "Broker.close_session": (
        'await broker.session("forgotten", keep=True).open()\n'
        'await broker.close_session("forgotten")\n'
        'print("forgotten" in [info.session_id for info in await broker.sessions()])',
        "False",
    ),
    "Broker.session_events": (
        'async with broker.session("told") as told:\n'
        '    await told.post_event("observation", {"content": "all tests pass"})\n'
        'async for event in broker.session_events("told", after=2):\n'
        '    print(event["type"], event["content"])',
        "observation all tests pass",
    ),
    "Broker.executions": (
        'async with broker.session("totals") as totals:\n'
        '    await totals.run("print(6 * 7)")\n'
        'last = (await broker.executions("totals"))[-1]\n'
        "print(last.state, last.success)",
        "done True",
    ),
    "Broker.notebook": (
        'async with broker.session("lab") as lab:\n'
        '    await lab.run("6 * 7")\n'
        '[cell] = (await broker.notebook("lab"))["cells"]\n'
        'print(cell["source"], cell["outputs"][0]["data"])',
        "6 * 7 {'text/plain': '42'}",
    ),
    "Broker.follow": (
        'async with broker.session("shown") as shown:\n'
        '    handle = await shown.submit("import time; print(1, flush=True); time.sleep(60)")\n'
        '    async for event in broker.follow("shown"):\n'
        "        print(type(event).__name__)\n"
        "        if isinstance(event, kernelbroker.events.Stdout):\n"
        "            await handle.interrupt()\n"
        "        if isinstance(event, kernelbroker.events.Result):\n"
        "            break",
        "Started\nStdout\nStderr\nResult",
    ),
    "Broker.result": (
        'async with broker.session("figures") as figures:\n'
        '    await figures.run("print(6 * 7)")\n'
        'last = (await broker.executions("figures"))[-1]\n'
        'print((await broker.result("figures", last.execution_id)).stdout)',
        "42",
    ),
    "Broker.replay": (
        'async with broker.session("events") as events:\n'
        '    await events.run("print(1)")\n'
        'last = (await broker.executions("events"))[-1]\n'
        'async for event in broker.replay("events", last.execution_id):\n'
        "    print(event.seq, type(event).__name__)",
        "1 Started\n2 Stdout\n3 Result",
    ),
    "Broker.submit": (
        'handle = await broker.submit("print(6 * 7)")\nprint((await handle.result()).stdout)',
        "42",
    ),
    "Broker.attach_execution": (
        'handle = await broker.submit("1 + 1")\n'
        "async with kernelbroker.connect() as other:\n"
        "    same = await other.attach_execution(handle.execution_id)\n"
        "    print(await same.result(timeout=60))",
        "2",
    ),
    "Broker.run": ('print(await broker.run("1 + 1"))', "2"),
    "Broker.stream": (
        "async for event in broker.stream(\"print('hello')\"):\n    print(type(event).__name__)",
        "Started\nStdout\nResult",
    ),
    "Broker.health": ('print((await broker.health())["status"])', "ok"),
    "Broker.external_browser": (
        "try:\n"
        '    answer = await broker.external_browser("navigate", {"url": "https://example.org/"})\n'
        '    print(answer.result["title"])\n'
        "except kernelbroker.NotFound:\n"
        '    print("this broker has none: browser.endpoint is not set")',
        "this broker has none: browser.endpoint is not set",
    ),
    "Broker.pool_status": ('print("idle_containers" in await broker.pool_status())', "True"),
    "Broker.assess": ('print((await broker.assess("x = 1")).level)', "safe"),
    "Broker.workspaces": (
        'async with broker.session("thesis"):\n'
        '    print("thesis" in [w.name for w in await broker.workspaces()])',
        "True",
    ),
    "Broker.delete_workspace": (
        'async with broker.session("draft") as draft:\n'
        '    await draft.files.write("a.txt", "")\n'
        'await broker.delete_workspace("draft")\n'
        'print("draft" in [w.name for w in await broker.workspaces()])',
        "False",
    ),
    "Broker.checkpoints": (
        'await session.checkpoint("mine")\n'
        'print("mine" in [c.name for c in await broker.checkpoints()])',
        "True",
    ),
    "Broker.checkpoint": (
        'await session.run("x = 1")\n'
        'await session.checkpoint("mine")\n'
        'print("x" in [v.name for v in (await broker.checkpoint("mine")).variables])',
        "True",
    ),
    "Broker.delete_checkpoint": (
        'await session.checkpoint("mine")\n'
        'await broker.delete_checkpoint("mine")\n'
        'print("mine" in [c.name for c in await broker.checkpoints()])',
        "False",
    ),
    "Session.open": ("print((await session.open()) is session)", "True"),
    "Session.run": (
        "result = await session.run(\"import math\\nprint('computing')\\nmath.sqrt(2)\")\n"
        "print(result.success, repr(result.stdout))\n"
        "print(result.text)",
        "True 'computing\\n'\ncomputing\n1.4142135623730951",
    ),
    "Session.stream": (
        'async for event in session.stream("for i in range(2): print(i, flush=True)"):\n'
        "    if isinstance(event, kernelbroker.events.Stdout):\n"
        '        print(event.content, end="")',
        "0\n1",
    ),
    "Session.submit": (
        "handle = await session.submit(\"import time; time.sleep(0.1); print('done')\")\n"
        "print((await handle.result()).stdout)",
        "done",
    ),
    "ExecutionHandle.status": (
        'handle = await session.submit("1 / 0")\n'
        "await handle.result()\n"
        "print((await handle.status()).state, (await handle.status()).error)",
        "done ZeroDivisionError: division by zero",
    ),
    "ExecutionHandle.code": (
        'handle = await session.submit("1 + 1")\nprint(await handle.code())',
        "1 + 1",
    ),
    "ExecutionHandle.events": (
        'handle = await session.submit("print(1)")\n'
        "async for event in handle.events():\n"
        "    print(event.seq, type(event).__name__)",
        "1 Started\n2 Stdout\n3 Result",
    ),
    "ExecutionHandle.result": (
        'handle = await session.submit("import time; time.sleep(60)")\n'
        "try:\n"
        "    await handle.result(timeout=0.1)\n"
        "except TimeoutError:\n"
        "    await handle.interrupt()\n"
        "print((await handle.result()).error_detail.cause)",
        "interrupted",
    ),
    "ExecutionHandle.interrupt": (
        'handle = await session.submit("import time; time.sleep(60)")\n'
        "await handle.interrupt()\n"
        "print((await handle.result()).success)",
        "False",
    ),
    "Session.stdin": (
        "async for event in session.stream(\"print(input('name? '))\", allow_stdin=True):\n"
        "    if isinstance(event, kernelbroker.events.Input):\n"
        '        await session.stdin(event.execution_id, "Ada")\n'
        "    elif isinstance(event, kernelbroker.events.Stdout):\n"
        "        print(event.content)",
        "Ada",
    ),
    "Session.variables": (
        'await session.run("numbers = [1, 2, 3]")\n'
        'print([v for v in await session.variables() if v.name == "numbers"])',
        "[Variable(name='numbers', type='list', shape=None, length=3)]",
    ),
    "Session.table": (
        "await session.run(\"import pandas; df = pandas.DataFrame({'a': [1, 2]})\")\n"
        'frame = await session.table("df")\n'
        'print(frame["a"].sum(), (await session.table("df", format="arrow")).num_rows)',
        "3 2",
    ),
    "Session.export": (
        "await session.run(\"import pandas; df = pandas.DataFrame({'a': [1, 2]})\")\n"
        'await session.export("df", "table.csv")\n'
        'print(pathlib.Path("table.csv").read_text().split())',
        "['a', '1', '2']",
    ),
    "Session.install": (
        'try:\n    await session.install("no/name")\n'
        "except kernelbroker.RequestError as error:\n    print(type(error).__name__)",
        "BadRequest",
    ),
    "Session.executions": (
        'await session.run("1 / 0")\n'
        "last = (await session.executions())[-1]\n"
        "print(last.state, last.success, last.error)",
        "done False ZeroDivisionError: division by zero",
    ),
    "Session.post_event": (
        'posted = await session.post_event("plan", {"steps": ["read", "fix"]})\n'
        'print(posted["type"], posted["steps"])',
        "plan ['read', 'fix']",
    ),
    "Session.events": (
        'async for event in session.events(after=posted["seq"] - 1):\n'
        '    print(event["type"], event["source"])\n'
        "    break",
        "plan sdk",
    ),
    "Session.notebook": (
        'await session.run("1 + 1")\nprint((await session.notebook())["cells"][-1]["source"])',
        "1 + 1",
    ),
    "Session.update": (
        'print((await session.update(metadata={"user": "ada"})).metadata)',
        "{'user': 'ada'}",
    ),
    "Session.checkpoint": (
        'await session.run("numbers, lines = [1, 2], (n for n in range(3))")\n'
        'saved = await session.checkpoint("numbers")\n'
        'print([v.form for v in saved.variables if v.name == "numbers"])\n'
        'print([m.reason for m in saved.missing if m.name == "lines"])',
        "['pickle']\n[\"cannot pickle 'generator' object\"]",
    ),
    "Session.fork": (
        'await session.run("x = 1")\n'
        "async with await session.fork() as trial:\n"
        '    await trial.run("x = 2")\n'
        'print(await session.run("x"))',
        "1",
    ),
    "Session.context": (
        'async with await session.context(language="bash") as shell:\n'
        '    await shell.run("echo shared > note")\n'
        "print(await session.run(\"print(open('note').read())\"))",
        "shared",
    ),
    "Session.contexts": (
        'context = await session.context("helper")\n'
        "print([each.session_id for each in await session.contexts()])\n"
        "await context.close()",
        "['helper']",
    ),
    "Session.interrupt": (
        'stream = session.stream("import time; print(1); time.sleep(60)")\n'
        "async for event in stream:\n"
        "    if isinstance(event, kernelbroker.events.Stdout):\n"
        "        await session.interrupt()\n"
        "print(event.error_detail.cause)",
        "interrupted",
    ),
    "Session.restart": (
        'await session.run("x = 1")\n'
        "await session.restart()\n"
        'print((await session.run("x")).error)',
        "NameError: name 'x' is not defined",
    ),
    "Session.close": (
        "other = await broker.session().open()\nawait other.close()\nprint(other.info)",
        "None",
    ),
    "Files.write": (
        'await session.files.write("notes/a.txt", "hello")\n'
        "print(await session.run(\"open('notes/a.txt').read()\"))",
        "'hello'",
    ),
    "Files.read": (
        'await session.files.write("b.bin", b"\\x00\\x01")\nprint(await session.files.read("b.bin"))',
        "b'\\x00\\x01'",
    ),
    "Files.read_text": (
        'await session.files.write("c.txt", "grün")\nprint(await session.files.read_text("c.txt"))',
        "grün",
    ),
    "Files.stream": (
        'await session.files.write("d.bin", b"x" * 1000)\n'
        'async for piece in session.files.stream("d.bin", progress=print):\n'
        "    print(len(piece))",
        "1000\n1000 1000",
    ),
    "Files.upload": (
        'pathlib.Path("in.csv").write_text("a,b")\n'
        'await session.files.upload("in.csv", "data/in.csv")\n'
        'print(await session.files.read_text("data/in.csv"))',
        "a,b",
    ),
    "Files.download": (
        'await session.files.write("e.txt", "from the sandbox")\n'
        'await session.files.download("e.txt", "e.txt")\n'
        'print(pathlib.Path("e.txt").read_text())',
        "from the sandbox",
    ),
    "Files.list": (
        'await session.files.write("f/g.txt", "12345")\n'
        'print([(file.path, file.kind, file.size) for file in await session.files.list("f")])',
        "[('f/g.txt', 'file', 5)]",
    ),
    "Files.exists": ('print(await session.files.exists("no such file"))', "False"),
    "Files.delete": (
        'await session.files.write("h.txt", "")\n'
        'await session.files.delete("h.txt")\n'
        'print(await session.files.exists("h.txt"))',
        "False",
    ),
    "Files.move": (
        'await session.files.write("i.txt", "")\n'
        'await session.files.move("i.txt", "j.txt")\n'
        'print(await session.files.exists("j.txt"))',
        "True",
    ),
    "Files.mkdir": (
        'await session.files.mkdir("k/l")\nprint(await session.files.exists("k/l"))',
        "True",
    ),
    "ExecutionResult": (
        "result = await session.run(\"print('to stdout')\\n[1, 2]\", result_var=None)\n"
        "print(result)\n"
        "for output in result.outputs:\n"
        '    print(output["output_type"], output.get("text") or output["data"])',
        "to stdout\n[1, 2]\nstream to stdout\n\nexecute_result {'text/plain': '[1, 2]'}",
    ),
    "ExecutionResult.as_text": (
        "result = await session.run(\"print('x' * 100_000)\")\n"
        "print(len(result.stdout), len(result.text), len(result.as_text(max_chars=500)))",
        "100001 20000 500",
    ),
    "ExecutionResult.raise_for_error": (
        "try:\n"
        "    (await session.run(\"print('so far')\\n1 / 0\")).raise_for_error()\n"
        "except kernelbroker.ExecutionFailed as error:\n"
        "    print(error)\n"
        "    print(error.result.stdout)",
        "ZeroDivisionError: division by zero\nso far",
    ),
    "Image": (
        'result = await session.run("import matplotlib.pyplot as p; _ = p.plot([1, 2])")\n'
        "(image,) = result.images\n"
        "print(image.mime, image.content[:4])",
        "image/png b'\\x89PNG'",
    ),
    "Image.save": (
        'result = await session.run("import matplotlib.pyplot as p; _ = p.plot([1, 2])")\n'
        'print(result.images[0].save("plot.png"))',
        "plot.png",
    ),
    "Display": (
        "result = await session.run(\"from IPython.display import HTML; HTML('<b>2</b>')\")\n"
        'print(result.displays[0].data["text/html"], result.displays[0].is_result)',
        "<b>2</b> True",
    ),
    "DataFrameInfo": (
        "code = \"import pandas; df = pandas.DataFrame({'a': range(1000)})\"\n"
        'info = (await session.run(code, result_var="df", preview_rows=2)).dataframe\n'
        "print(info.shape, info.preview)",
        "(1000, 1) [{'a': 0}, {'a': 1}]",
    ),
    "DataFrameInfo.preview_to_pandas": (
        "code = \"import pandas; df = pandas.DataFrame({'a': range(1000)})\"\n"
        'info = (await session.run(code, result_var="df", preview_rows=2)).dataframe\n'
        "print(len(info.preview_to_pandas()), len(await session.table(info.var_name)))",
        "2 1000",
    ),
    "AgentWorkspace": (
        'async with kernelbroker.AgentWorkspace("plan", broker, layout="agent") as workspace:\n'
        '    await workspace.write_file("code/main.py", "print(1)")\n'
        '    print(await workspace.list_files("code"), workspace.get_container_path("code"))\n'
        "    await workspace.cleanup()",
        "['code/main.py'] /data/code",
    ),
    "SandboxClient": (
        "async with kernelbroker.SandboxClient() as client:\n"
        '    await client.execute("x = 20")\n'
        '    print(await client.execute("x + 1"))\n'
        "    print(await client.reset())\n"
        '    print((await client.execute("x")).error)',
        "21\nTrue\nNameError: name 'x' is not defined",
    ),
    "SandboxClient.stream_execute": (
        "async with kernelbroker.SandboxClient() as client:\n"
        "    async for chunk in client.stream_execute(\"print('hello')\"):\n"
        "        print(chunk.type)",
        "stdout\nresult",
    ),
    "assess": (
        'assessment = kernelbroker.assess("x = 1")\nprint(assessment.level, assessment.findings)',
        "safe []",
    ),
    "RequestError": (
        "try:\n"
        '    await session.files.read("no such file")\n'
        "except kernelbroker.RequestError as error:\n"
        "    print(error.code, error.retry_after)",
        "not_found None",
    ),
}

_MODULES = ("agents", "analysis", "langchain", "ports", "risk")
_MODULES_INTRODUCTION = """# Modules of the SDK

*Made from the SDK by `make docs`; do not edit.*

What `kernelbroker` has in modules of its own, for [agents](agents.md), [analyses](analysis.md),
[LangChain](langchain.md), [programs that embed sandboxes](embedding.md) and [risk](risk.md).
[The SDK's page](sdk.md) has the clients, sessions and results.
"""

_SECTIONS: list[tuple[str, list[str]]] = [
    ("Connecting", ["connect", "Broker"]),
    ("Sessions", ["Session"]),
    ("Files", ["Files", "Listing", "FileInfo", "AgentWorkspace"]),
    ("Submitted executions", ["ExecutionHandle"]),
    ("Results", ["ExecutionResult", "Image", "Display", "DataFrameInfo"]),
    ("SandboxClient", ["SandboxClient", "StreamChunk"]),
    (
        "Facts about sessions",
        [
            "SessionInfo",
            "SandboxLimits",
            "ProjectOptions",
            "ExecutionInfo",
            "CheckpointInfo",
            "CheckpointSummary",
            "SavedVariable",
            "MissingVariable",
            "WorkspaceInfo",
        ],
    ),
    (
        "Projects",
        [
            "Code",
            "CodeOperationResponse",
            "CodeOperationError",
            "CodeOperationValidationError",
            "SandboxConnectionError",
            "SandboxResourceError",
            "SandboxSecurityError",
            "SandboxTimeoutError",
        ],
    ),
    ("Browsers", ["Browser", "BrowserPage", "BrowserError"]),
    (
        "Coding agents",
        [
            "CodingAgent",
            "AgentRun",
            "AgentEvent",
            "CodingAgentResult",
            "ModelRequest",
            "ModelReply",
            "ToolCall",
        ],
    ),
    ("Risk", ["assess", "Assessment", "Finding"]),
]
_EVENTS = [
    *(events.Started, events.Stdout, events.Stderr, events.Image, events.Display),
    *(events.Clear, events.Input, events.Result),
    *(events.ErrorDetail, events.Variable, events.FileChange, events.Truncated),
]
_WITHOUT_CONSTRUCTOR = (
    *(kernelbroker.Broker, kernelbroker.Session, kernelbroker.Files, kernelbroker.ExecutionHandle),
    *(kernelbroker.Code, kernelbroker.Browser, kernelbroker.CodingAgent, kernelbroker.AgentRun),
)
_NAMES = re.compile(r"[\w.*]+(?:, [\w.*]+)*")
_HEADINGS = ("Args", "Attributes", "Returns", "Raises")


def page() -> str:
    """Return the text of docs/sdk.md."""
    parts = [_INTRODUCTION]
    for title, names in _SECTIONS:
        parts.append(f"## {title}\n")
        for name in names:
            parts += _described(name, getattr(kernelbroker, name))
    parts.append("## Events\n\nThe types of `kernelbroker.events`, which streams yield.\n")
    for kind in _EVENTS:
        parts.append(f"### events.{kind.__name__}\n")
        parts.append(_block(f"events.{kind.__name__}", kind))
        parts.append(_prose(kind.__doc__ or ""))
    parts.append("## Errors\n")
    tree = inspect.cleandoc(errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    parts.append(f"```text\n{inspect.cleandoc(tree)}\n```\n")
    parts.append("All are names of `kernelbroker`.\n")
    for name in ("RequestError", "ExecutionFailed", "LossyTableWarning"):
        parts.append(f"### {name}\n\n{_prose(getattr(kernelbroker, name).__doc__ or '')}")
        parts += _example(name)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def modules_page() -> str:
    """Return the text of docs/sdk-modules.md."""
    parts = [_MODULES_INTRODUCTION]
    for name in _MODULES:
        module = importlib.import_module(f"kernelbroker.{name}")
        parts.append(f"## kernelbroker.{name}\n\n{_prose(module.__doc__ or '')}")
        for each in sorted(module.__all__):
            member = getattr(module, each)
            if getattr(kernelbroker, each, None) is member:
                parts.append(
                    f"### {name}.{each}\n\nThe same as [`kernelbroker.{each}`](sdk.md#{each.lower()}).\n"
                )
            elif inspect.isclass(member) or inspect.isfunction(member):
                parts += _described(f"{name}.{each}", member)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def documented() -> set[str]:
    """Return the public names on the page."""
    names = {name for _, group in _SECTIONS for name in group}
    failures = {n for n in kernelbroker.__all__ if inspect.isclass(getattr(kernelbroker, n))}
    found = {n for n in failures if issubclass(getattr(kernelbroker, n), Exception)}
    return names | found | {"agents", "events", "risk", "sync"}


def _described(name: str, member: Any) -> list[str]:
    parts = [f"### {name}\n", _block(name, member), _prose(_docstring(member))]
    parts += _example(name)
    if not inspect.isclass(member) or issubclass(member, list):
        return parts
    for label, method in vars(member).items():
        if label.startswith("_") or not _is_public(method):
            continue
        full = f"{name}.{label}"
        if isinstance(method, property):
            parts.append(f"#### {full}\n\n{_prose(method.__doc__ or '')}")
            continue
        function = method.__func__ if isinstance(method, classmethod) else method
        parts += [f"#### {full}\n", _block(full, function), _prose(function.__doc__ or "")]
        parts += _example(full)
    return parts


def _is_public(member: object) -> bool:
    return isinstance(member, property) or (
        inspect.isfunction(member) and member.__module__.startswith("kernelbroker")
    )


def _docstring(member: Any) -> str:
    text = inspect.cleandoc(member.__doc__ or "")
    if inspect.isclass(member) and (inherited := inspect.getdoc(member.__init__)):
        arguments = inherited if inherited.startswith("Args:") else ""
        text = f"{text}\n\n{arguments}" if "open_sessions" not in arguments else text
    return text


def _example(name: str) -> list[str]:
    if name not in EXAMPLES:
        return []
    code, output = EXAMPLES[name]
    return [f"```python\n{code}\n```\n", f"```text\n{output}\n```\n"]


def _block(name: str, member: Any) -> str:
    return f"```python\n{signature(name, member)}\n```\n"


def signature(name: str, member: Any) -> str:
    """Return the signature of a function, or the fields of a class."""
    if inspect.isclass(member):
        if issubclass(member, enum.Enum):
            return "\n".join(
                [f"class {name}:", *(f"    {each.name} = {each.value!r}" for each in member)]
            )
        if issubclass(member, Exception) and member.__init__ is Exception.__init__:
            return f"class {name}"
        if fields := _fields(member):
            return "\n".join([f"class {name}:", *(f"    {field}" for field in fields)])
        if member in _WITHOUT_CONSTRUCTOR:
            return f"class {name}"
        if issubclass(member, list):
            return f"class {name}(list[FileInfo])"
    found = inspect.signature(member)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    texts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts and not takes_any_number:
            texts.append("*")
        texts.append(_parameter(parameter))
    answer = str(found.return_annotation).strip("'")
    returned = (
        "" if inspect.isclass(member) or found.return_annotation is found.empty else f" -> {answer}"
    )
    is_async = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
    prefix = "" if inspect.isclass(member) else "async def " if is_async else "def "
    line = f"{prefix}{name}({', '.join(texts)}){returned}"
    if len(line) <= 96:
        return line
    inner = "".join(f"    {text},\n" for text in texts)
    return f"{prefix}{name}(\n{inner}){returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    text = f"{star}{parameter.name}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    return f"{text} = " + (f'"{default}"' if isinstance(default, str) else repr(default))


def _fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [f"{field.name}: {field.type}" for field in dataclasses.fields(kind)]
    if issubclass(kind, msgspec.Struct):
        annotations: dict[str, str] = {}
        for base in reversed(kind.__mro__):
            annotations |= getattr(base, "__annotations__", {})
        return [f"{name}: {annotations[name]}" for name in kind.__struct_fields__]
    return []


def _prose(docstring: str) -> str:
    """A docstring as markdown: its sections become lists."""
    lines: list[str] = []
    in_list = False
    for line in inspect.cleandoc(docstring).split("\n"):
        if line.rstrip(":") in _HEADINGS and line.endswith(":"):
            lines += [f"*{line[:-1]}:*", ""]
            in_list = True
        elif in_list and line.startswith("    ") and not line.startswith("     "):
            names, _, text = line.strip().partition(": ")
            quoted = ", ".join(f"`{name}`" for name in names.split(", "))
            is_named = text and _NAMES.fullmatch(names)
            lines.append(f"- {quoted}: {text}" if is_named else f"- {line.strip()}")
        elif in_list and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            in_list = in_list and not line
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    MODULES_PAGE.write_text(modules_page())
