"""The task of docs/agent-task.md, in one session, through jails, containers and a browser."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernelbroker
import pytest

from tests.backends.probes import containers_of
from tests.e2e.support import ROOT, BrokerProcess, whole_system
from tests.support.requires import IMAGE, requires

pytestmark = [*whole_system, requires("docker")]

PAGE = (ROOT / "docs" / "agent-task.md").read_text()
PRICES = "data:text/html,<title>Prices</title><p>It costs <b id=price>7</b>"


def _block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    templates = tomllib.loads(_block("toml"))["templates"]
    plain = {"profile": "browser", "backend": "docker", "image": IMAGE, "pool": {"min_size": 0}}
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        broker = BrokerProcess(
            directory,
            TEMPLATES=json.dumps({**templates, "plain": plain}),
            DOCKER__DATA_DIR=directory / "containers",
            DOCKER__RUN_DIR=directory / "run",
            POOL__ACQUIRE_TIMEOUT=60,
        )
        with broker.running():
            yield broker
        assert containers_of(directory / "containers") == []


async def test_the_task_of_an_agent(broker: BrokerProcess) -> None:
    """Each step runs in the sandbox that it needs, and files and variables go along."""
    names: dict[str, Any] = {}
    exec(_block("python"), names)
    async with kernelbroker.connect(broker.url, broker.token) as client:
        assert await names["task"](client, PRICES) == _block("text").splitlines()


async def test_a_container_without_gvisor_has_no_browser(broker: BrokerProcess) -> None:
    """Chromium has no sandbox of its own, so a plain container is refused, with the reason in `/health`."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        told = (await client.health())["browser"]["templates"]
        assert told["browser"] == "ok" and "needs gVisor" in told["plain"]
        async with client.session(template="plain") as session:
            with pytest.raises(kernelbroker.Conflict, match="gVisor"):
                await session.browser.navigate("data:text/html,x")
