"""A broker for people, and a real browser in which its page is used."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import kernelbroker.sync
import pytest
from kernelbroker_server.tenants.tokens import TokenFile
from playwright.sync_api import Browser, BrowserContext, Page

from tests.e2e.support import BrokerProcess
from tests.support.chromium import Problems, browser

__all__ = ["browser"]

TIMEOUT_MS = 60_000
"""For what should take a second: a busy machine is no failure."""


@dataclass
class Console:
    """A broker with a console, and tokens of several people."""

    broker: BrokerProcess
    alice: str
    bob: str
    stranger: str
    url: str = ""

    def call(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        """Call the API. Returns the status and the JSON of the answer."""
        token = options.pop("token", self.alice)
        request = Request(
            f"{self.broker.url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                **options,
            },
        )
        try:
            with urlopen(request, timeout=60) as answer:
                data, status = answer.read(), answer.status
        except HTTPError as error:
            data, status = error.read(), error.code
        return status, json.loads(data) if data else None

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Get what is not of the API. Returns the status and the body."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            with urlopen(Request(self.broker.url + path, headers=headers), timeout=60) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def connect(self, token: str | None = None) -> kernelbroker.sync.Broker:
        return kernelbroker.sync.connect(self.broker.url, token or self.alice)

    @contextmanager
    def session(self, session_id: str) -> Iterator[kernelbroker.sync.Session]:
        """A session of the SDK, closed at the end."""
        with self.connect() as broker, broker.session(session_id) as session:
            yield session


@contextmanager
def running_console(**settings: object) -> Iterator[Console]:
    """A broker with tokens of two people of one tenant, the first an operator, and of a stranger."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        tokens = TokenFile(directory / "tokens.json")
        alice = tokens.create("team", name="alice", operator=True)
        bob = tokens.create("team", name="bob")
        stranger = tokens.create("others", name="stranger")
        broker = BrokerProcess(
            directory,
            TOKENS_FILE=directory / "tokens.json",
            AUDIT_LOG=directory / "audit.log",
            TOKEN="the-settings-token",
            SANDBOX__POLICY="confirm",
            **settings,
        )
        with broker.running():
            yield Console(broker, alice, bob, stranger, f"{broker.url}/console")


@pytest.fixture(scope="session")
def console() -> Iterator[Console]:
    with running_console(POOL__MIN_SIZE=2, POOL__MAX_SIZE=8, SANDBOX__MEMORY="2GiB") as console:
        yield console


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, console: Console) -> Iterator[OpenPage]:
    """Opens the console in a tab of its own, signed in. A page that complains fails the test."""
    contexts: list[BrowserContext] = []
    watched: list[Problems] = []

    def open_one(
        path: str = "",
        token: str | None = None,
        expected: tuple[str, ...] = (),
        url: str = "",
        **options: Any,
    ) -> Page:
        options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB"} | options
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        problems = Problems(page, (url or console.url).removesuffix("/console"))
        problems.expected = expected
        watched.append(problems)
        page.goto(f"{url or console.url}{path}")
        sign_in(page, console.alice if token is None else token)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert [each for problems in watched for each in problems.unexpected()] == []


def sign_in(page: Page, token: str) -> None:
    if token:
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.locator(".link-state.open").wait_for(state="attached")
