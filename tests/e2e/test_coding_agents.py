"""Coding agents from npm and the native one, in real sandboxes, with models that follow a script."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import kernelbroker
import openai
import pytest
from kernelbroker import AgentEvent, ModelReply, ModelRequest, ToolCall

from tests.backends.probes import ON_GVISOR
from tests.e2e.support import BrokerProcess, backend_settings, running_broker, whole_system
from tests.support.requires import AGENTS, requires
from tests.support.scripted_model import USAGE, ScriptedModel, Turn, serving_model

pytestmark = [*whole_system, requires("git")]

AGENT_IMAGE = os.environ.get("KERNELBROKER_TEST_AGENT_IMAGE", "kernelbroker-claude-code")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "coding-agents.md"
ROOT = "/workspace/project"
CALC = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n"
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "claude-code": [
        ("Read", {"file_path": f"{ROOT}/calc.py"}),
        (
            "Edit",
            {"file_path": f"{ROOT}/calc.py", "old_string": "a - b", "new_string": "a + b"},
        ),
        ("Bash", {"command": "python -m pytest -q", "description": "run the tests"}),
    ],
    "gemini-cli": [
        ("read_file", {"file_path": f"{ROOT}/calc.py"}),
        (
            "replace",
            {
                "file_path": f"{ROOT}/calc.py",
                "old_string": "a - b",
                "new_string": "a + b",
                "instruction": "mend it",
            },
        ),
        ("run_shell_command", {"command": "python -m pytest -q", "description": "tests"}),
    ],
    "opencode": [
        ("read", {"filePath": f"{ROOT}/calc.py"}),
        ("edit", {"filePath": f"{ROOT}/calc.py", "oldString": "a - b", "newString": "a + b"}),
        ("bash", {"command": "python -m pytest -q", "description": "run the tests"}),
    ],
}
KEY = "sk-of-the-broker-alone"
ENV = {
    "ANTHROPIC_BASE_URL": "http://anthropic.internal",
    "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:3128/google.internal",
}
HEADERS = {"claude-code": "x-api-key", "gemini-cli": "x-goog-api-key", "opencode": "x-api-key"}
FIND_KEY = f"""
import os, pathlib
key, found = bytes(reversed({KEY[::-1].encode()!r})), []
for root in ("/proc", "/home", "/tmp", "/data", "/run"):
    for directory, names, files in os.walk(root, onerror=lambda _: None):
        names[:] = [n for n in names if n not in ("shared", "task", "fd", "map_files")]
        for name in files:
            path = pathlib.Path(directory, name)
            if root == "/proc" and name not in ("environ", "cmdline"):
                continue
            try:
                if path.is_file() and key in path.read_bytes():
                    found.append(str(path))
            except OSError:
                pass
found
"""


def script(agent: str) -> list[Turn]:
    read, edit, test = CALLS[agent]
    texts = ["I look at it.", "Now I edit.", "I run the tests."]
    turns = [Turn(text, [call]) for text, call in zip(texts, (read, edit, test), strict=True)]
    return [*turns, Turn("It is mended.")]


def make_project(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "calc.py").write_text(CALC)
    (directory / "test_calc.py").write_text(TEST)
    return directory


async def upload(session: kernelbroker.Session, directory: Path) -> None:
    await session.code.upload(make_project(directory))


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    """A model server of the host. Each test sets its script."""
    with serving_model([Turn("ok")]) as model:
        yield model


@pytest.fixture(scope="module")
def agents_broker(model: ScriptedModel) -> Iterator[BrokerProcess]:
    """A broker whose sandboxes have the coding agents, no network, and the model without its key."""
    with running_broker(**settings(model)) as broker:
        yield broker


def settings(model: ScriptedModel) -> dict[str, object]:
    return {
        "POOL__MIN_SIZE": 1,
        "POOL__MAX_SIZE": 4,
        "SANDBOX__CPUS": 2,
        "SANDBOX__SHARED_DATA": AGENTS,
        "SANDBOX__UPSTREAMS": '["anthropic", "google"]',
        "SANDBOX__ENV": json.dumps(ENV),
        "UPSTREAMS__ANTHROPIC__URL": model.url,
        "UPSTREAMS__ANTHROPIC__HEADER": "x-api-key",
        "UPSTREAMS__ANTHROPIC__TOKEN": KEY,
        "UPSTREAMS__ANTHROPIC__METHODS": '["POST"]',
        "UPSTREAMS__GOOGLE__URL": model.url,
        "UPSTREAMS__GOOGLE__HEADER": "x-goog-api-key",
        "UPSTREAMS__GOOGLE__TOKEN": KEY,
    }


@pytest.fixture
async def agents_client(agents_broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(agents_broker.url, agents_broker.token) as client:
        yield client


@requires("coding agents")
@pytest.mark.parametrize("agent", list(CALLS))
async def test_an_agent_of_npm_mends_a_project(
    agents_client: kernelbroker.Broker, model: ScriptedModel, agent: Any, tmp_path: Path
) -> None:
    """A real agent reads, edits and tests; its events are ours, and the end has diff, tests and usage.

    Its model is behind the broker, which adds the key; the sandbox never holds it.
    """
    model.script = script(agent)
    model.seen.clear()
    async with agents_client.session() as session:
        await upload(session, tmp_path / "project")
        name = "scripted" if agent == "opencode" else None
        run = session.coding_agent.run("mend add", agent=agent, model=name)
        events = [event async for event in run]
        result = await run
        found = await session.run(FIND_KEY)

    assert (result.agent, result.outcome, result.success) == (agent, "completed", True)
    assert result.fallback is None
    steps = [event.text for event in events if event.type == "step_start"]
    assert steps == ["I look at it.", "Now I edit.", "I run the tests.", "It is mended."]
    calls = [event for event in events if event.type == "code_operation"]
    assert [call.operation for call in calls] == ["read", "edit", "run"]
    assert [call.tool for call in calls] == [name for name, _ in CALLS[agent]]
    assert calls[1].parameters == calls[1].parameters | CALLS[agent][1][1]
    seen = [event for event in events if event.type == "observation"]
    assert [each.id for each in seen] == [call.id for call in calls]
    assert not any(each.is_error for each in seen)
    assert "1 passed" in str(seen[2].content)
    assert all(event.raw for event in seen)
    assert all(event.agent == agent for event in calls)
    assert result.text == "It is mended."
    assert "-    return a - b\n+    return a + b\n" in str(result.diff)
    assert result.files == ["calc.py"]
    assert result.tests is not None
    assert (result.tests["passed"], result.tests["failed"]) == (1, 0)
    assert result.usage["output_tokens"] >= 4 * USAGE[1]
    if agent == "claude-code":  # the only one that knows a price
        assert result.cost_usd is not None
        assert 0 < result.cost_usd < 1
    assert len(model.conversations()) >= 4
    assert {headers.get(HEADERS[agent]) for _, headers, body in model.seen if body} == {KEY}
    assert found.text.strip() == "[]"


def scripted(turns: list[ModelReply]) -> Any:
    """A model as a callable, and what it was asked."""

    def model(request: ModelRequest) -> ModelReply:
        answered = sum(message["role"] == "assistant" for message in request.messages)
        return turns[min(answered, len(turns) - 1)]

    return model


NATIVE = [
    ModelReply("I look.", (ToolCall("code_read", {"path": "calc.py"}),), {"output_tokens": 5}),
    ModelReply("", (ToolCall("run_tests", {}),)),
    ModelReply(
        "I edit.",
        (ToolCall("code_edit", {"path": "calc.py", "old": "a - b", "new": "a + b"}),),
    ),
    ModelReply("It is mended.", usage={"output_tokens": 7}),
]


async def test_native_works_with_a_callable(client: kernelbroker.Broker, tmp_path: Path) -> None:
    """A model of the caller's drives the operations, and the result is that of any agent."""
    async with client.session() as session:
        await upload(session, tmp_path / "project")
        run = session.coding_agent.run("mend add", agent="native", client=scripted(NATIVE))
        events = [event async for event in run]
        result = await run
    assert kinds(events)[:3] == ["step_start", "code_operation", "observation"]
    assert [event.operation for event in events if event.type == "code_operation"] == [
        "read",
        "run_tests",
        "edit",
    ]
    told = [event for event in events if event.type == "test_output"]
    assert told[0].tests is not None
    assert told[0].tests["failed"] == 1
    failed = [event.is_error for event in events if event.type == "observation"]
    assert failed == [False, True, False]
    assert (result.agent, result.requested, result.fallback) == ("native", "native", None)
    assert (result.success, result.turns, result.usage) == (True, 4, {"output_tokens": 12})
    assert "+    return a + b" in str(result.diff)
    assert result.tests is not None
    assert (result.tests["passed"], result.tests["failed"]) == (1, 0)


@pytest.mark.parametrize("runtime", [pytest.param("docker", marks=requires("docker")), ON_GVISOR])
async def test_an_agent_in_its_image(model: ScriptedModel, runtime: str, tmp_path: Path) -> None:
    """In a container the agent of the image is the one that runs, without a name and without a key."""
    model.script = script("claude-code")
    model.seen.clear()
    options = settings(model) | backend_settings(runtime) | {"POOL__MIN_SIZE": 0}
    del options["SANDBOX__SHARED_DATA"]
    with running_broker(DOCKER__IMAGE=AGENT_IMAGE, SANDBOX__PROCESSES=200, **options) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session() as session,
        ):
            await upload(session, tmp_path / "project")
            result = await session.coding_agent.run("mend add")
            found = await session.run(FIND_KEY)
    assert (result.agent, result.requested, result.outcome) == ("claude-code", None, "completed")
    assert "+    return a + b" in str(result.diff)
    assert result.tests is not None
    assert result.tests["passed"] == 1
    assert found.text.strip() == "[]"


async def test_the_example_of_the_documentation(
    client: kernelbroker.Broker, tmp_path: Path
) -> None:
    """The program on the page works as shown."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENTATION.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    async with client.session() as session:
        await upload(session, tmp_path / "project")
        result = await names["mended"](session)
    assert result.success
    assert result.tests["passed"] == 1


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_native_works_with_clients(
    client: kernelbroker.Broker, vendor: str, tmp_path: Path
) -> None:
    """The clients of Anthropic and OpenAI, also the synchronous one, drive the native agent."""
    edit = {"path": "calc.py", "old": "a - b", "new": "a + b"}
    turns = [Turn("I edit.", [("code_edit", edit), ("run_tests", {})]), Turn("It is mended.")]
    with serving_model(turns) as model:
        driver: Any = anthropic.AsyncAnthropic(api_key="x", base_url=model.url)
        if vendor == "openai":
            driver = openai.OpenAI(api_key="x", base_url=f"{model.url}/v1")
        async with client.session() as session:
            await upload(session, tmp_path / "project")
            with pytest.raises(ValueError, match="model="):
                session.coding_agent.run("mend add", client=driver)
            result = await session.coding_agent.run(
                "mend add", agent="native", client=driver, model="scripted"
            )
        await driver.close() if vendor == "anthropic" else driver.close()
    assert (result.success, result.text, result.turns) == (True, "It is mended.", 2)
    assert result.usage == {"input_tokens": 2 * USAGE[0], "output_tokens": 2 * USAGE[1]}
    assert result.tests is not None
    assert result.tests["passed"] == 1
    told = json.dumps(model.conversations()[1])
    assert "1 passed" in told


async def test_native_is_bounded(client: kernelbroker.Broker, tmp_path: Path) -> None:
    """A model that never ends, fails, or is too slow ends the run with its outcome and the diff."""
    write = ModelReply(calls=(ToolCall("code_edit", {"path": "new.py", "content": "1\n"}),))

    async def never(_: ModelRequest) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    def broken(request: ModelRequest) -> Any:
        return write if len(request.messages) == 1 else 5

    async with client.session() as session:
        await upload(session, tmp_path / "project")
        run = session.coding_agent.run
        endless = await run("a", agent="native", client=lambda _: write, max_turns=3, tests=False)
        failed = await run("b", agent="native", client=broken, tests=False)
        late = await run("c", agent="native", client=never, timeout=0.5, tests=False)
    assert (endless.outcome, endless.turns, endless.success) == ("turn_limit", 3, False)
    assert endless.files == ["new.py"]
    assert failed.outcome == "failed"
    assert "not int" in str(failed.error)
    assert late.outcome == "timeout"


def test_without_await(broker: BrokerProcess, tmp_path: Path) -> None:
    """The synchronous session iterates the events, and waits for the result."""
    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        session.code.upload(make_project(tmp_path / "project"))
        run = session.coding_agent.run("mend add", agent="native", client=scripted(NATIVE))
        seen = [event.type for event in run]
        assert run.wait() == run.result
        assert run.result is not None
        assert run.result.success
        assert seen.count("code_operation") == 3


async def test_a_missing_agent_falls_back_to_native(
    client: kernelbroker.Broker, tmp_path: Path
) -> None:
    """Without the agent the caller's model does the task, and the result says so and why."""
    async with client.session() as session:
        await upload(session, tmp_path / "project")
        run = session.coding_agent.run("mend add", agent="claude-code", client=scripted(NATIVE))
        events = [event async for event in run]
        result = await run
        with pytest.raises(kernelbroker.CodeOperationError) as raised:
            await session.coding_agent.run("mend add")
    assert kinds(events)[0] == "fallback"
    assert (result.agent, result.requested) == ("native", "claude-code")
    assert "the sandbox has no claude-code" in str(result.fallback)
    assert result.success
    assert raised.value.code == "agent_missing"
    assert "client=" in raised.value.message


def kinds(events: list[AgentEvent]) -> list[str]:
    return [event.type for event in events]
