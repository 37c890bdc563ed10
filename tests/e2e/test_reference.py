"""The examples of docs/sdk.md, on a real broker."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pathlib
from pathlib import Path

import kernelbroker
import pytest

from tests.e2e.support import ROOT, BrokerProcess, whole_system

pytestmark = whole_system

spec = importlib.util.spec_from_file_location("make_sdk", ROOT / "docs" / "make_sdk.py")
assert spec is not None
assert spec.loader is not None
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


async def test_every_example_prints_what_the_page_shows(
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each example prints the output on the page; all of them run in one session."""
    monkeypatch.setenv("KERNELBROKER_URL", broker.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", broker.token)
    monkeypatch.chdir(tmp_path)
    wrong = {}
    async with (
        kernelbroker.connect() as client,
        client.session(workspace_retention=0) as session,
    ):
        names = {"broker": client, "session": session}
        names |= {"kernelbroker": kernelbroker, "pathlib": pathlib}
        for name, (code, output) in reference.EXAMPLES.items():
            compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            failure = ""
            try:
                running = eval(compiled, names)
                if inspect.isawaitable(running):
                    await running
            except Exception as error:
                failure = repr(error)
            printed = capsys.readouterr().out + failure
            if printed.rstrip("\n") != output.rstrip("\n"):
                wrong[name] = printed
    assert wrong == {}
