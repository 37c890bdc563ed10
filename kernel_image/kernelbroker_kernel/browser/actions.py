"""What the browser can do, by name. Each action gets Chromium, its deadline, and its parameters."""

from __future__ import annotations

import asyncio
import json
from builtins import TimeoutError as BuiltinTimeoutError
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Error, Frame, Page, Request, TimeoutError

from .. import environment, workspace
from ..errors import Refused
from .chromium import Chromium
from .deadline import Deadline
from .downloads import free_path, move, write

SCHEMES = ("http", "https", "file", "about", "data")
_READING = Path(__file__).with_name("reading.js").read_text()
_MAX_VALUE = 1024**2
_SETTLE_S = 0.1
"""A click that opens a page or a window shows this only a moment later."""
_LOAD_MS = 5_000
"""How long an action waits for the rest of a page, such as its pictures."""
_ERROR_PAGE_MS = 1_000
"""How long the browser may take to show that a page could not be opened."""
_ENDS = ("framenavigated", "download", "requestfailed", "close")
"""What the request for a page leads to."""
_LOOK_MS = 50
"""Between two looks for an element."""
_MAX_FRAMES, _FRAME_S = 20, 1.0
_MAX_TEXT, _MAX_LINKS = 20_000, 100
"""As in reading.js, of the page and its frames together."""
_TRUE = ("true", "on", "yes", "1", "checked")


async def navigate(chromium: Chromium, deadline: Deadline, url: str) -> dict[str, Any]:
    """Open a page in the current window."""
    response = None
    try:
        response = await chromium.page.goto(
            _address(url), timeout=deadline.ms, wait_until="domcontentloaded"
        )
    except Error as error:
        if "Download is starting" not in str(error) and "ERR_ABORTED" not in str(error):
            if "net::ERR_" in str(error):  # its page of errors would interrupt what is opened next
                with suppress(TimeoutError):
                    await chromium.page.wait_for_url(
                        "chrome-error:**",
                        wait_until="commit",
                        timeout=min(_ERROR_PAGE_MS, deadline.ms),
                    )
            raise
        await asyncio.sleep(_SETTLE_S)
        await chromium.saved()
        return {"status": None}
    loaded = await _loaded(chromium.page, deadline)
    return {"status": response and response.status, "loaded": loaded}


async def click(chromium: Chromium, deadline: Deadline, selector: str) -> dict[str, Any]:
    """Click an element."""
    frame = await _found(chromium.page, selector, deadline)
    async with _settling(chromium, deadline):
        await frame.click(selector, timeout=deadline.ms)
    return {}


async def fill(
    chromium: Chromium, deadline: Deadline, selector: str, value: str | bool
) -> dict[str, Any]:
    """Fill in a field, choose an option, or set a checkbox."""
    frame = await _found(chromium.page, selector, deadline)
    kind = await frame.eval_on_selector(
        selector, "e => e.tagName === 'SELECT' ? 'select' : (e.type || '').toLowerCase()"
    )
    text = value if isinstance(value, str) else str(value).lower()
    if kind == "select":
        try:
            await frame.select_option(selector, text, timeout=deadline.ms)
        except TimeoutError as error:
            raise Refused("not_found", f"{selector[:200]} has no such option") from error
    elif kind in ("checkbox", "radio"):
        await _check(frame, selector, deadline, wanted=text.strip().lower() in _TRUE)
    else:
        await frame.fill(selector, text, timeout=deadline.ms)
    return {"kind": kind}


async def _check(frame: Frame, selector: str, deadline: Deadline, *, wanted: bool) -> None:
    """Set a checkbox. One that a page hides behind a label of its own is clicked as its label would be."""
    if await frame.is_visible(selector):
        await frame.set_checked(selector, wanted, timeout=deadline.ms)
    elif await frame.is_checked(selector, timeout=deadline.ms) != wanted:
        await frame.eval_on_selector(selector, "e => e.click()")
        if await frame.is_checked(selector, timeout=deadline.ms) != wanted:
            raise Refused("failed", f"{selector[:200]} is hidden, and cannot be set")


async def text(chromium: Chromium, deadline: Deadline) -> dict[str, Any]:  # noqa: ARG001
    """The readable text with links and fields, and the links by themselves; then that of its frames."""
    page = chromium.page
    found: dict[str, Any] = await page.evaluate(_READING)
    for frame in page.frames[1:_MAX_FRAMES]:
        if found["truncated"]:
            break
        with suppress(Error, BuiltinTimeoutError):  # it has gone, is not loaded yet, or hangs
            async with asyncio.timeout(_FRAME_S):
                within = await frame.evaluate(_READING)
            if within["text"]:
                text = f"{found['text']}\n\n[frame {frame.url[:200]}]\n{within['text']}"
                found["text"] = text[:_MAX_TEXT]
                found["links"] = (found["links"] + within["links"])[:_MAX_LINKS]
                found["truncated"] = within["truncated"] or len(text) > _MAX_TEXT
    return found


async def evaluate(chromium: Chromium, deadline: Deadline, script: str) -> dict[str, Any]:
    """The value of JavaScript in the page."""
    async with _settling(chromium, deadline):
        value = await chromium.page.evaluate(script)
    try:
        size = len(json.dumps(value, default=str))
    except (ValueError, RecursionError) as error:
        raise Refused("failed", "the value is no JSON") from error
    if size > _MAX_VALUE:
        raise Refused("too_large", f"the value is larger than {_MAX_VALUE:,} bytes; return less")
    return {"value": json.loads(json.dumps(value, default=str))}


async def screenshot(
    chromium: Chromium,
    deadline: Deadline,
    url: str | None = None,
    full_page: bool = False,  # noqa: ARG001
) -> dict[str, Any]:
    """Open the address, if there is one. The picture itself is taken of every action."""
    return {} if url is None else await navigate(chromium, deadline, url)


async def download(
    chromium: Chromium,
    deadline: Deadline,
    url: str | None = None,
    selector: str | None = None,
    path: str | None = None,
) -> dict[str, Any]:
    """Save what an address, or a click on an element, sends."""
    if (url is None) == (selector is None):
        raise Refused("bad_request", "give the url of the file, or the selector of what to click")
    target = None if path is None else _target(path)
    if url is not None:
        saved = await _fetched(chromium, deadline, _address(url))
    else:
        assert selector is not None
        frame = await _found(chromium.page, selector, deadline)
        coming = chromium.next_download()
        await frame.click(selector, timeout=deadline.ms)
        saved = await coming
    if "error" in saved:
        raise Refused("failed", f"the download failed: {saved['error']}")
    if target is not None:
        await asyncio.to_thread(move, Path(environment.WORKSPACE, saved["path"]), target)
        saved["path"] = str(target.relative_to(environment.WORKSPACE))
    return saved


async def connect(chromium: Chromium, deadline: Deadline) -> dict[str, Any]:  # noqa: ARG001
    """The address of Chromium's protocol, for cells."""
    return {"endpoint": chromium.endpoint, "window": chromium.windows.index(chromium.page)}


async def close(chromium: Chromium, deadline: Deadline) -> dict[str, Any]:  # noqa: ARG001
    """The process ends the browser, and itself."""
    return {}


ACTIONS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    each.__name__: each
    for each in (navigate, click, fill, text, evaluate, screenshot, download, connect, close)
}


async def _fetched(chromium: Chromium, deadline: Deadline, url: str) -> dict[str, Any]:
    """Save what an address sends, in a window of its own: as a download, or what it would show."""
    page = await chromium.page_beside()
    coming = chromium.next_download()
    try:
        try:
            response = await page.goto(url, timeout=deadline.ms, wait_until="commit")
        except Error as error:
            if "Download is starting" not in str(error) and "ERR_ABORTED" not in str(error):
                raise
            return await coming
        if response is None or not response.ok:
            status = "nothing" if response is None else f"status {response.status}"
            raise Refused("failed", f"{url[:200]} answers with {status}")
        path = free_path(Path(urlsplit(response.url).path).name or "page.html")
        content = await response.body()
        await asyncio.to_thread(write, path, content)
        shown = str(path.relative_to(environment.WORKSPACE))
        return {"url": url, "path": shown, "size": len(content)}
    finally:
        coming.cancel()
        await page.close()


def _target(path: str) -> Path:
    names = workspace.components(path)
    if not names:
        raise Refused("bad_request", "path is the name of a file, relative to the workspace")
    return Path(environment.WORKSPACE, *names)


def _address(url: str) -> str:
    """The address; with a scheme, if it has none."""
    url = url.strip()
    scheme = urlsplit(url).scheme.lower() if "//" in url else url.partition(":")[0].lower()
    if scheme in SCHEMES and ":" in url:
        return url
    if "//" in url or scheme in ("javascript", "blob", "chrome", "view-source"):
        raise Refused("bad_request", f"an address begins with one of {', '.join(SCHEMES)}")
    is_here = url.startswith(("localhost", "127.0.0.1", "[::1]"))
    return f"{'http' if is_here else 'https'}://{url}"


async def _found(page: Page, selector: str, deadline: Deadline) -> Frame:
    """Wait for an element; returns the frame that has it, which is the page itself if it has one.

    Raises:
        Refused: there is none.
    """
    while True:
        for frame in page.frames[:_MAX_FRAMES]:
            try:
                if await frame.query_selector(selector) is not None:
                    return frame
            except Error as error:
                is_loading = "context was destroyed" in str(error) or "detached" in str(error)
                if frame is page.main_frame and not is_loading:
                    raise
        if deadline.ms <= _LOOK_MS:
            raise Refused("not_found", f"the page has no element {selector[:200]!r}")
        await asyncio.sleep(_LOOK_MS / 1000)


@asynccontextmanager
async def _settling(chromium: Chromium, deadline: Deadline) -> AsyncIterator[None]:
    """After the block, wait for what it has begun: a page, a window, a download."""
    page, has_begun, has_come = chromium.page, asyncio.Event(), asyncio.Event()

    def on_request(request: Request) -> None:
        if request.is_navigation_request():
            has_begun.set()

    def on_end(_: object) -> None:
        has_come.set()

    page.on("request", on_request)
    for event in _ENDS:
        page.on(event, on_end)  # type: ignore[call-overload]
    try:
        yield
        await asyncio.sleep(_SETTLE_S)
        if has_begun.is_set():
            with suppress(BuiltinTimeoutError):
                async with asyncio.timeout(min(_LOAD_MS, deadline.ms) / 1000):
                    await has_come.wait()
    finally:
        page.remove_listener("request", on_request)
        for event in _ENDS:
            page.remove_listener(event, on_end)
    await chromium.windows_came()
    await _loaded(chromium.page, deadline)
    await chromium.saved()


async def _loaded(page: Page, deadline: Deadline) -> bool:
    """Whether all of the page has come, after a while."""
    try:
        await page.wait_for_load_state("load", timeout=min(_LOAD_MS, deadline.ms))
    except Error:
        return False
    return True
