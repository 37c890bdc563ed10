"""Chromium and its windows: start, crash, dialogs, downloads. The actions are in `actions.py`.

Chromium runs without its own sandbox, which needs user namespaces: cells must not get these. The jail or
gVisor around it is the boundary, as for the session's code.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import (
    BrowserContext,
    CDPSession,
    Dialog,
    Download,
    Error,
    Page,
    Playwright,
    async_playwright,
)

from ..contract import CHROMIUM
from ..errors import Refused
from .downloads import save

VARIABLE = "KERNELBROKER_CHROMIUM"
WIDTH, HEIGHT = 1280, 800
"""Of a window, in pixels."""
MAX_WINDOWS = 8
MAX_NOTED = 20
"""Dialogs and downloads that one answer tells of."""
MAX_TEXT = 500
START_MS = 60_000
_RESPONSE_S = 2.0
_WINDOW_S = 5.0
_BESIDE_S = 600.0
"""As long as an action: a download may take so long."""
_ARGS = [
    "--remote-debugging-port=0",  # on loopback, for cells that use Playwright themselves
    "--disable-gpu",
    "--disable-breakpad",
    "--no-zygote",
]
_PREFERENCES = {"plugins": {"always_open_pdf_externally": True}}
"""A document is downloaded: the viewer shows no text."""


def program() -> str | None:
    """The path of Chromium; None if the sandbox has none."""
    given = os.environ.get(VARIABLE)
    found = (shutil.which(each) for each in ((given,) if given else CHROMIUM))
    return next((each for each in found if each), None)


class Chromium:
    """One browser at a time; another one after a crash.

    Attributes:
        page: the current window: the one that was opened last.
        restarted: an earlier browser was lost, and nobody was told yet.
    """

    page: Page

    def __init__(self) -> None:
        self.restarted = False
        self.page_crashed = False
        self._playwright: Playwright | None = None
        self._context: BrowserContext | None = None
        self._profile: tempfile.TemporaryDirectory[str] | None = None
        self._dialogs: list[dict[str, str]] = []
        self._saving: list[asyncio.Task[dict[str, Any]]] = []
        self._awaited: asyncio.Future[dict[str, Any]] | None = None
        self._coming = 0
        self._none_coming = asyncio.Event()
        self._own = 0
        """Windows that `page_beside` opens, and that have not come yet."""
        self._sessions: dict[Page, CDPSession] = {}
        """To stop pages that hang: one that is opened only then gets no answer."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """Work that nobody waits for."""

    @property
    def has_ended(self) -> bool:
        return self._context is None

    @property
    def windows(self) -> list[Page]:
        return [] if self._context is None else self._context.pages

    @property
    def context(self) -> BrowserContext:
        assert self._context is not None
        return self._context

    @property
    def endpoint(self) -> str:
        """The address of Chromium's protocol."""
        assert self._profile is not None
        port = (Path(self._profile.name) / "DevToolsActivePort").read_text().splitlines()[0]
        return f"http://127.0.0.1:{int(port)}"

    async def ready(self) -> None:
        """Start it, if it does not run; open a window, if there is none that works.

        Raises:
            Refused: it does not start.
        """
        if self._context is not None:
            try:  # it may have crashed a moment ago
                async with asyncio.timeout(_RESPONSE_S):
                    await self._context.cookies("http://localhost/")
            except (Error, TimeoutError):
                self._lost()
        if self._context is None:
            await self._start()
        assert self._context is not None
        if self.page_crashed or self.page.is_closed():
            self.restarted = self.restarted or self.page_crashed
            broken, self.page_crashed = self.page, False
            self.page = await self.page_beside()
            if not broken.is_closed():
                self._later(broken.close())

    async def stop(self) -> None:
        """End it. May be called again."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(Error, TimeoutError):
                async with asyncio.timeout(_RESPONSE_S):
                    await context.close()
        await self._end_driver()

    async def revive(self) -> None:
        """Make the window usable after an action that hangs. Replaces it, or the browser, if need be."""
        if self._context is None:
            return
        page = self.page
        session = self._sessions.get(page)
        if session is not None:
            with suppress(Error, TimeoutError):
                async with asyncio.timeout(_RESPONSE_S):
                    await session.send("Page.stopLoading")
                    await session.send("Runtime.terminateExecution")
        if await self._responds(page):
            return
        try:
            async with asyncio.timeout(_RESPONSE_S):
                self.page = await self.page_beside()
            self._later(page.close())
        except (Error, TimeoutError):
            self._lost()
            await self._end_driver()

    async def _responds(self, page: Page) -> bool:
        try:
            async with asyncio.timeout(_RESPONSE_S):
                await page.evaluate("0")
        except (Error, TimeoutError):
            return False
        return True

    async def state(self) -> dict[str, Any]:
        """Where the window is, and what happened since the last time: dialogs, downloads, a new start."""
        state: dict[str, Any] = {"url": self.page.url, "title": await self._title(self.page)}
        if len(self.windows) > 1:
            state["windows"] = [each.url[:MAX_TEXT] for each in self.windows]
        if self._dialogs:
            state["dialogs"], self._dialogs = self._dialogs, []
        if saved := [each for each in self._saving if each.done()]:
            self._saving = [each for each in self._saving if not each.done()]
            state["downloads"] = [each.result() for each in saved]
        if self.restarted:
            state["restarted"], self.restarted = True, False
        return state

    async def _title(self, page: Page) -> str:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(_RESPONSE_S):
                return (await page.title())[:MAX_TEXT]
        return ""

    async def page_beside(self) -> Page:
        """Open a window of our own: it does not become the current one, nor count as one of the session."""
        self._own += 1
        return await self.context.new_page()

    def next_download(self) -> asyncio.Future[dict[str, Any]]:
        """What `downloads.save` returns for the next one, which `state` does not tell of then."""
        self._awaited = asyncio.get_running_loop().create_future()
        return self._awaited

    async def windows_came(self) -> None:
        """Wait for the windows that pages have opened, for a while."""
        if self._coming:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WINDOW_S):
                    await self._none_coming.wait()
            self._coming = 0

    async def saved(self) -> None:
        """Wait for the downloads that have begun."""
        if self._saving:
            await asyncio.wait(self._saving)

    async def _start(self) -> None:
        found = program()
        if found is None:
            raise Refused(
                "browser_unavailable",
                "the sandbox has no Chromium: use an image that has it, or install it on the host of "
                "local sandboxes",
            )
        await self._end_driver()
        # Servers of the sandbox itself are not asked for through the proxy.
        os.environ["PLAYWRIGHT_DISABLE_FORCED_CHROMIUM_PROXIED_LOOPBACK"] = "1"
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        _prepare(Path(self._profile.name))
        options: dict[str, Any] = {}
        if proxy := os.environ.get("http_proxy"):
            options["proxy"] = {"server": proxy, "bypass": os.environ.get("no_proxy", "")}
        try:
            self._playwright = await async_playwright().start()
            context = await self._playwright.chromium.launch_persistent_context(
                self._profile.name,
                executable_path=found,
                headless=True,
                chromium_sandbox=False,
                args=_ARGS,
                viewport={"width": WIDTH, "height": HEIGHT},
                accept_downloads=True,
                timeout=START_MS,
                **options,
            )
        except Exception as error:  # of the driver, too, which tells what it misses
            await self._end_driver()
            raise Refused("browser_unavailable", f"Chromium does not start: {error}") from error
        self._context = context
        context.on("close", lambda _: self._lost())
        context.on("dialog", self._on_dialog)
        context.on("page", self._on_page)
        for page in context.pages:
            self._watch(page)
        self.page = context.pages[0] if context.pages else await context.new_page()
        self.page_crashed = False

    async def _end_driver(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with suppress(Exception):  # it may have ended with the browser
                await playwright.stop()
        profile, self._profile = self._profile, None
        if profile is not None:
            await asyncio.to_thread(profile.cleanup)

    def _lost(self) -> None:
        """The browser has ended."""
        if self._context is not None:
            self._context, self._own = None, 0
            self._sessions.clear()
            self.restarted = True

    def _on_window_open(self) -> None:
        """A page opens a window. Playwright tells of it when it is there."""
        self._coming += 1
        self._none_coming.clear()

    def _on_page(self, page: Page) -> None:
        if self._own:
            self._own -= 1
            self._watch(page)
            return
        self._coming = max(0, self._coming - 1)
        if not self._coming:
            self._none_coming.set()
        if len(self.windows) > MAX_WINDOWS:
            self._later(page.close())
            return
        self._watch(page)
        self.page = page

    def _watch(self, page: Page) -> None:
        page.on("crash", self._on_crash)
        page.on("download", self._on_download)
        page.on("close", self._on_close)
        self._later(self._attach(page))

    def _on_crash(self, page: Page) -> None:
        if page is self.page:
            self.page_crashed = True

    def _on_close(self, page: Page) -> None:
        self._sessions.pop(page, None)
        if page is self.page and self.windows:
            self.page = self.windows[-1]

    async def _on_dialog(self, dialog: Dialog) -> None:
        """Answer at once, since a page waits: what only informs is accepted, a question declined."""
        accepts = dialog.type in ("alert", "beforeunload")
        if len(self._dialogs) < MAX_NOTED:
            message = dialog.message[:MAX_TEXT]
            answer = "accepted" if accepts else "dismissed"
            self._dialogs.append({"type": dialog.type, "message": message, "answer": answer})
        with suppress(Error):
            await (dialog.accept() if accepts else dialog.dismiss())

    def _on_download(self, download: Download) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._later(_pass_on(save(download), self._awaited))
            self._awaited = None
        elif len(self._saving) < MAX_NOTED:
            self._saving.append(asyncio.create_task(save(download)))

    async def _attach(self, page: Page) -> None:
        self._sessions[page] = session = await self.context.new_cdp_session(page)
        session.on("Page.windowOpen", lambda _: self._on_window_open())
        await session.send("Page.enable")

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the action, for a while at most. It may fail: the window may be gone."""

        async def bounded() -> None:
            with suppress(Error, TimeoutError, AssertionError):
                async with asyncio.timeout(_BESIDE_S):
                    await work

        task = asyncio.create_task(bounded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _prepare(profile: Path) -> None:
    directory = profile / "Default"
    directory.mkdir()
    (directory / "Preferences").write_text(json.dumps(_PREFERENCES))


async def _pass_on(
    saving: Coroutine[Any, Any, dict[str, Any]], awaited: asyncio.Future[dict[str, Any]]
) -> None:
    saved = await saving
    if not awaited.done():
        awaited.set_result(saved)
