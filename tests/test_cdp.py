"""The client of Chromium's protocol, where a page goes elsewhere in the middle of a question."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernelbroker_server import cdp
from kernelbroker_server.cdp import CdpBrowser, CdpError, Window


class RefusingBrowser(CdpBrowser):
    """Refuses as many questions as it is told, as a browser does when the page goes elsewhere."""

    def __init__(self, refusals: int) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked: list[str] = []
        self._refusals = refusals

    async def _send(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        self.asked.append(method)
        if len(self.asked) <= self._refusals:
            raise CdpError("Inspected target navigated or closed")
        if method == "Page.captureScreenshot":
            return {"data": "cG5n"}
        return {"result": {"value": ["http://x/", "X"]}}


@pytest.mark.parametrize("refusals", [0, 1, 2])
async def test_a_page_that_goes_elsewhere_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """Its address and its picture are those of the page that came."""
    monkeypatch.setattr(cdp, "_PAUSE_S", 0.0)
    window = Window("context", "target", "session", asyncio.Event())
    assert await RefusingBrowser(refusals).where(window) == {"url": "http://x/", "title": "X"}
    assert await RefusingBrowser(refusals).screenshot(window, full_page=False) == b"png"


async def test_a_browser_that_always_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third refusal is told."""
    monkeypatch.setattr(cdp, "_PAUSE_S", 0.0)
    browser = RefusingBrowser(100)
    with pytest.raises(CdpError, match="navigated or closed"):
        await browser.where(Window("context", "target", "session", asyncio.Event()))
    assert browser.asked == ["Runtime.evaluate"] * 3
