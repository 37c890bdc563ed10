"""A browser behind the proxy of an allow list, used by the programs of docs/browser.md."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import kernelbroker
import kernelbroker.sync
import pytest
from kernelbroker import BrowserError
from kernelbroker_server.app import Broker
from kernelbroker_server.config import Settings

from tests.backends.probes import ON_GVISOR
from tests.e2e.support import ROOT, backend_settings, running_broker, whole_system
from tests.support.requires import KERNEL_PYTHON, requires
from tests.support.upstream import Names, Page, Upstream, serving_http

pytestmark = [*whole_system, requires("chromium")]

HOST = "shop.example.org"
HTML = {"Content-Type": "text/html"}
PROGRAMS = dict(
    re.findall(
        r"^```python\n# (\w+)\.py\n(.*?)^```$",
        (ROOT / "docs" / "browser.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with tempfile.TemporaryDirectory() as name, serving_http(Path(name), HOST) as upstream:
        upstream.pages |= {
            "/order": Page(
                b"<title>Order</title><form action=/sent><input id=name name=name><button>Send</button>"
                b"</form>",
                headers=HTML,
            ),
            "/sent": Page(
                b"<title>Sent</title><a href=/prices.csv>The price list</a>", headers=HTML
            ),
            "/prices.csv": Page(
                b"a,b\n1,2\n", headers={"Content-Disposition": "attachment; filename=prices.csv"}
            ),
        }
        yield upstream


@asynccontextmanager
async def _client(directory: Path, upstream: Upstream) -> AsyncIterator[kernelbroker.Broker]:
    template: dict[str, Any] = {
        "profile": "browser",
        "allow": (HOST,),
        "pool": {"min_size": 0, "acquire_timeout": 60},
    }
    broker = Broker(
        Settings(  # type: ignore[call-arg]
            port=0,
            local={
                "kernel_python": KERNEL_PYTHON,
                "require_isolation": True,
                "data_dir": directory / "data",
                "run_dir": directory / "run",
            },
            pool={"min_size": 0},
            sandbox={"imports": ()},
            templates={"browser": template},
            egress={"private_networks": (ip_network("127.0.0.0/8"),)},
            audit_log=directory / "audit.log",
        ),
        resolve=Names({HOST: [[upstream.address]]}),
    )
    await broker.start()
    try:
        async with kernelbroker.connect(broker.url, broker.token) as client:
            yield client
    finally:
        await broker.stop()


async def test_pages_come_through_the_proxy(upstream: Upstream) -> None:
    """The documented programs order and read; hosts that are not allowed are refused with the reason."""
    assert set(PROGRAMS) == {"order", "route"}
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        async with _client(Path(name), upstream) as client:
            names: dict[str, Any] = {}
            exec(PROGRAMS["order"], names)
            picture = await names["order"](client, f"http://{HOST}/order")
            assert picture.startswith(b"\x89PNG")
            assert [seen[2] for seen in upstream.seen if seen[2] != "/favicon.ico"] == [
                "/order",
                "/sent?name=Ada",
                "/prices.csv",
            ]
            async with client.session(template="browser") as session:
                exec(PROGRAMS["route"], names)
                assert "The price list" in await names["look"](
                    client, session, f"http://{HOST}/sent?name=Ada"
                )
                browser = session.browser
                refused = await browser.navigate("http://elsewhere.example.org/")
                assert refused.status == 403
                with pytest.raises(BrowserError, match="does not allow this host"):
                    await browser.navigate("https://elsewhere.example.org/")
                with pytest.raises(BrowserError, match="ERR_"):
                    await browser.navigate(f"https://{HOST}/order")
                with pytest.raises(BrowserError, match="has no network"):
                    await browser.navigate("http://169.254.169.254/latest/")
        assert "elsewhere.example.org" in _audit(Path(name))


def _audit(directory: Path) -> str:
    return (directory / "audit.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize("kind", [ON_GVISOR])
def test_containers_with_gvisor_have_a_browser(kind: str) -> None:
    """In containers the image has Chromium and Playwright, and the user of the code runs them."""
    templates = {"web": {"profile": "browser", "pool": {"min_size": 0}}}
    with (
        running_broker(
            **backend_settings(kind), TEMPLATES=json.dumps(templates), POOL__MIN_SIZE=0
        ) as broker,
        kernelbroker.sync.connect(broker.url, broker.token) as client,
    ):
        assert client.health()["browser"]["templates"] == {"web": "ok"}
        with client.session(template="web") as session:
            page = session.browser.navigate(
                "data:text/html,<title>in gVisor</title>words", timeout=120
            )
            assert page.title == "in gVisor"
            assert session.browser.text() == "words"
            user = session.run("import os; print(os.getuid(), os.path.exists('/usr/bin/chromium'))")
            assert user.stdout == "1000 True\n"
