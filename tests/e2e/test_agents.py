"""The code of docs/agents.md, with the real libraries and a scripted model."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import kernelbroker
import pytest

from tests.e2e.support import ROOT, BrokerProcess, whole_system

pytestmark = whole_system

PAGE = (ROOT / "docs" / "agents.md").read_text()
SQUARE = "import matplotlib.pyplot as plt; plt.plot([1, 2]); print('drawn'); 6 * 7"
FAILING = "1 / 0"
PNG = b"\x89PNG\r\n"


@pytest.fixture(autouse=True)
def pages_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess
) -> Iterator[Path]:
    """The page's files, to be imported; what runs them finds the broker by the environment."""
    blocks = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == ["tool", "with_anthropic", "with_openai", "mcp_server"]
    for name, code in blocks:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", broker.token)
    yield tmp_path
    for name, _ in blocks:
        sys.modules.pop(name, None)


class Model:
    """A model's HTTP API, whose answers are written beforehand.

    Attributes:
        asked: the bodies of the requests.
    """

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.asked: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                model.asked.append(json.loads(body))
                answer = json.dumps(answers[len(model.asked) - 1]).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Model:
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


async def test_the_tool_returns_text_and_images() -> None:
    """Text, values, errors and a lost kernel are reported, long text is cut, figures are shown."""
    from tool import run

    async with kernelbroker.SandboxClient() as sandbox:
        text, (image,), failed = await run(sandbox, SQUARE)
        assert text.startswith("drawn\n")
        assert "42" in text
        assert image.content.startswith(PNG)
        assert not failed
        text, images, failed = await run(sandbox, FAILING)
        assert text.rstrip().endswith("ZeroDivisionError: division by zero")
        assert (images, failed) == ([], True)
        assert await run(sandbox, "x = 1") == ("[no output]", [], False)
        text, _, _ = await run(sandbox, "print('a' * 50_000 + 'z')")
        assert len(text) == 20_000
        assert text.endswith("z")
        text, _, failed = await run(sandbox, "import os; os._exit(3)")
        assert "exited with status 3" in text
        assert "all variables are gone" in text
        assert failed
        text, _, failed = await run(sandbox, "x" * 200_000)
        assert "100000" in text.replace(",", "")
        assert failed


async def test_anthropic_loop() -> None:
    """The loop answers each call with its cell's output, and ends with the model's text."""
    import anthropic  # here, since it takes seconds
    from with_anthropic import answer

    def turn(*content: dict[str, Any], reason: str = "tool_use") -> dict[str, Any]:
        return {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": list(content),
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }

    calls = [
        {"type": "tool_use", "id": f"call-{number}", "name": "python", "input": {"code": code}}
        for number, code in enumerate((SQUARE, FAILING))
    ]
    end = {"type": "text", "text": "It is 42."}
    with Model([turn(*calls), turn(end, reason="end_turn")]) as model:
        async with (
            anthropic.AsyncAnthropic(base_url=model.url, api_key="none") as client,
            kernelbroker.SandboxClient() as sandbox,
        ):
            assert await answer(client, "m", sandbox, "6 * 7?") == "It is 42."
    first, second = model.asked
    assert first["tools"][0]["name"] == "python"
    asked, said, told = second["messages"]
    assert (asked["content"], [call["id"] for call in said["content"]]) == (
        "6 * 7?",
        ["call-0", "call-1"],
    )
    good, bad = told["content"]
    assert (good["tool_use_id"], good["is_error"]) == ("call-0", False)
    text, image = good["content"]
    assert "42" in text["text"]
    assert image["source"]["media_type"] == "image/png"
    assert base64.b64decode(image["source"]["data"]).startswith(PNG)
    assert (bad["tool_use_id"], bad["is_error"]) == ("call-1", True)
    assert "ZeroDivisionError" in bad["content"][0]["text"]


async def test_openai_loop() -> None:
    """The loop answers each call with its cell's output, matched by id."""
    import openai
    from with_openai import answer

    def response(*output: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "resp",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "status": "completed",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    call = {
        "type": "function_call",
        "id": "fc",
        "call_id": "call-0",
        "name": "python",
        "arguments": json.dumps({"code": SQUARE}),
        "status": "completed",
    }
    text = {"type": "output_text", "text": "It is 42.", "annotations": []}
    message = {
        "type": "message",
        "id": "msg",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    with Model([response(call), response(message)]) as model:
        async with (
            openai.AsyncOpenAI(base_url=model.url, api_key="none") as client,
            kernelbroker.SandboxClient() as sandbox,
        ):
            assert await answer(client, "m", sandbox, "6 * 7?") == "It is 42."
    asked, said, told = model.asked[1]["input"]
    assert asked["content"] == "6 * 7?"
    assert (said["type"], told["type"]) == ("function_call", "function_call_output")
    assert said["call_id"] == told["call_id"] == "call-0"
    words, picture = told["output"]
    assert "42" in words["text"]
    kind, _, data = picture["image_url"].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(PNG)


async def test_mcp_server(pages_code: Path, broker: BrokerProcess) -> None:
    """An MCP client that starts the server has the tool, with state from call to call."""
    environ = {"KERNELBROKER_URL": broker.url, "KERNELBROKER_TOKEN": broker.token}
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=[str(pages_code / "mcp_server.py")], env=environ
    )
    async with Client(server) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "python"
        assert list(tool.input_schema["properties"]) == ["code"]
        await client.call_tool("python", {"code": "x = 6"})
        done = await client.call_tool("python", {"code": f"{SQUARE}; x * 7"})
        text, image = done.content
        assert "42" in text.text
        assert base64.b64decode(image.data).startswith(PNG)
        assert not done.is_error
        assert (await client.call_tool("python", {"code": FAILING})).is_error
