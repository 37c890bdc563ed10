"""The documentation at /docs of a broker, over HTTP and in a real browser."""

from __future__ import annotations

import gzip
import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from kernelbroker_server.config import Settings
from kernelbroker_server.documentation.handler import Site
from kernelbroker_server.documentation.surface import SITE
from kernelbroker_server.surfaces import make_surfaces
from playwright.sync_api import Browser, Page

from tests.e2e.support import ROOT, BrokerProcess, whole_system
from tests.support.chromium import Problems

pytestmark = whole_system

TIMEOUT_MS = 60_000
SHOWN = [
    "",
    "concepts/",
    "start/",
    "rest/",
    "console/",
    "comparison/",
    "configuration/",
    "zh/offline/",
]
"""Pages that a browser opens: pictures, tables, code, the longest ones, Chinese."""
PAGES = sorted(name for name in Site(SITE).files.names if name.endswith(".html"))


def fetch(
    broker: BrokerProcess, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request without a token, its path as it is. Returns status, headers and body."""
    connection = http.client.HTTPConnection(urlsplit(broker.url).netloc, timeout=60)
    try:
        connection.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def directives(policy: str) -> dict[str, list[str]]:
    """A Content-Security-Policy by its directives."""
    parts = [each.split() for each in policy.split(";")]
    return {name: sources for name, *sources in parts}


def test_the_site_is_that_of_the_sources() -> None:
    """The site was built from the present docs/, and building it again does nothing."""
    before = (SITE / "index.html").stat().st_mtime_ns
    script = ROOT / "docs" / "build_site.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (SITE / "index.html").stat().st_mtime_ns == before


def test_pages_need_no_token_and_allow_nothing_foreign(broker: BrokerProcess) -> None:
    """Every page is sent without a token; its policy allows this origin and the page's own scripts."""
    assert {"index.html", "start/index.html", "zh/start/index.html", "rest/index.html"} <= {*PAGES}
    for name in PAGES:
        status, headers, body = fetch(broker, f"/docs/{name.removesuffix('index.html')}")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8"), name
        assert body == (SITE / name).read_bytes()
        policy = directives(headers["content-security-policy"])
        assert policy["default-src"] == ["'none'"]
        assert not {"'unsafe-inline'", "'unsafe-eval'", "*"} & {
            source for sources in policy.values() for source in sources
        }
        inline = re.findall(rb"<script>", body)
        assert len([each for each in policy["script-src"] if "sha256-" in each]) == len(inline)
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
            "nosniff",
            "no-referrer",
        )


def test_paths(broker: BrokerProcess) -> None:
    """A path without its slash leads to the page, also behind a prefix; what is not there is 404."""
    for path, target in (
        ("/docs", "docs/"),
        ("/docs/start", "start/"),
        ("/docs/zh/start", "start/"),
    ):
        status, headers, _ = fetch(broker, path)
        assert (status, headers["location"]) == (302, target)
        joined = urljoin(f"https://example.org/prefix{path}", target)
        assert joined == f"https://example.org/prefix{path}/"
    for path in (
        "/docs/nothing",
        "/docs/nothing/",
        "/docs/index.html/",
        "/docs/../console",
        "/docs/../../handler.py",
        "/docs/%2e%2e/handler.py",
        "/docs/..%2fhandler.py",
        "/docs//etc/passwd",
        "/docs/SOURCES.sha256",
        "/docs/%00",
        f"/docs/{'a' * 5000}",
    ):
        status, _, body = fetch(broker, path)
        assert (status, b"not_found" in body) == (404, True), path
    for path, target in (("/docs/nothing", "./"), ("/docs/no/such/", "../../")):
        status, headers, body = fetch(broker, path, accept="text/html,*/*")
        assert (status, headers["content-type"]) == (404, "text/html; charset=UTF-8")
        assert f'href="{target}"'.encode() in body
    assert fetch(broker, "/docs/", "POST")[0] == 405
    status, headers, body = fetch(broker, "/docs/start/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) == (SITE / "start" / "index.html").stat().st_size


def test_caching_and_compression(broker: BrokerProcess) -> None:
    """Pages are asked for again and answered with 304; files with a digest in their name are kept."""
    status, headers, body = fetch(broker, "/docs/sdk/", Accept_Encoding="gzip")
    assert (status, headers["content-encoding"], headers["cache-control"]) == (
        200,
        "gzip",
        "no-cache",
    )
    assert gzip.decompress(body) == (SITE / "sdk" / "index.html").read_bytes()
    again = fetch(broker, "/docs/sdk/", If_None_Match=headers["etag"])
    assert (again[0], again[2]) == (304, b"")
    (style,) = (SITE / "assets" / "stylesheets").glob("main.*.css")
    _, headers, _ = fetch(broker, f"/docs/assets/stylesheets/{style.name}")
    assert "immutable" in headers["cache-control"]
    assert "content-encoding" not in headers


class Links(HTMLParser):
    """What a page refers to, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        name = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag, "")
        if target := of.get(name):
            self.targets.append(target)
        self.places |= {place for key in ("id", "name") if (place := of.get(key))}


def test_every_link_of_the_site_works() -> None:
    """What pages refer to on this broker exists, also the place in the page; nothing is foreign."""
    links = {name: Links((SITE / name).read_text()) for name in PAGES}
    broken = []
    for name, page in links.items():
        for target in page.targets:
            url = urlsplit(urljoin(f"http://docs/{name.removesuffix('index.html')}", target))
            if url.netloc != "docs" or url.scheme != "http":
                continue
            path = url.path.lstrip("/")
            found = f"{path}index.html" if path == "" or path.endswith("/") else path
            if not (SITE / found).exists() or (
                found in links and url.fragment not in links[found].places
            ):
                broken.append(f"{name}: {target}")
    assert broken == []
    fetched = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)=\"?(?:https?:)?//")
    assert [name for name in PAGES if fetched.search((SITE / name).read_text())] == []


@contextmanager
def opened(browser: Browser, broker: BrokerProcess, path: str = "") -> Iterator[Page]:
    """A page in a tab, which must not fail, violate its policy, or send a request elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    problems = Problems(page, broker.url)
    page.goto(f"{broker.url}/docs/{path}")
    yield page
    context.close()
    assert problems.unexpected() == []


def test_pages_open_in_a_browser(browser: Browser, broker: BrokerProcess) -> None:
    """Pages open with their styles, pictures and navigation, and ask nobody else for anything."""
    with opened(browser, broker) as page:
        for name in SHOWN:
            page.goto(f"{broker.url}/docs/{name}")
            assert page.locator("h1").first.inner_text().strip(), name
            small = page.evaluate(
                "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
            )
            assert small == 0, name
            language = "zh" if name.startswith("zh/") else "en"
            assert page.locator("html").get_attribute("lang") == language
        assert page.evaluate("getComputedStyle(document.querySelector('.md-header')).position") == (
            "sticky"
        )


def test_a_reader_finds_the_way(browser: Browser, broker: BrokerProcess) -> None:
    """From the first page to a guide by a link, to another page by the navigation, and to dark colours."""
    with opened(browser, broker) as page:
        page.locator("article").get_by_role("link", name="Data teams").click()
        page.wait_for_url("**/docs/guides/data-team/")
        assert page.locator("h1").inner_text().startswith("For data teams")
        page.locator(".md-nav--primary").get_by_role("link", name="Concepts").first.click()
        page.wait_for_url("**/docs/concepts/")
        page.locator("label[title=Dark]").click()
        page.wait_for_function("document.body.dataset.mdColorScheme == 'slate'")
        page.reload()
        page.wait_for_function("document.body.dataset.mdColorScheme == 'slate'")


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("orphan_grace", "Running the broker as a service"),
        ("离线安装", "离线安装"),
        ("gVisor", "gVisor"),
    ],
)
def test_search(browser: Browser, broker: BrokerProcess, words: str, title: str) -> None:
    """The search finds a setting, Chinese and a name, and leads to a page that has it."""
    with opened(browser, broker) as page:
        field = page.locator(".md-search__input")
        field.click()
        field.fill(words)
        field.press("End")  # the search looks when a key is released
        results = page.locator(".md-search-result__link")
        results.first.wait_for()
        found = page.locator(".md-search-result__list").inner_text()
        assert title in found.replace("\u200b", "")  # which separates the characters of Chinese
        results.first.click()
        page.wait_for_url(lambda url: url.rstrip("/") != f"{broker.url}/docs")
        assert page.locator("h1").first.inner_text()


# What people type, and the page and section that must come first.
_ASKED = {
    "OOM": "faq/#out-of-memory-oom-a-cell-ends-with-out_of_memory",
    "GPU": "faq/#can-code-use-a-gpu",
    "pip": "faq/#how-do-i-install-a-package-with-pip",
    "close session": "faq/#how-do-i-keep-a-session-or-close-one",
    "how do I close a session": "faq/#how-do-i-keep-a-session-or-close-one",
    "timeout": "faq/#timeout-a-cell-ended-after-30-seconds",
    "permission": "faq/#permission-denied-or-read-only-a-cell-cannot-write-a-file",
    "upload file": "faq/#how-do-i-send-files-and-get-them-back",
    "401": "faq/#401-the-token-is-wrong",
    "session close console": "api/#sessions",
}


def test_what_people_type_is_answered_first(browser: Browser, broker: BrokerProcess) -> None:
    """All words must match if a section has them all, and pages that were generated come last."""
    generated = (
        "rest/",
        "sdk/",
        "sdk-modules/",
        "configuration/",
        "cli/",
        "changelog/",
        "licenses/",
    )
    with opened(browser, broker) as page:
        field = page.locator(".md-search__input")
        field.click()
        for words, expected in _ASKED.items():
            field.fill("")
            page.locator(".md-search-result__item").first.wait_for(state="detached")
            field.fill(words)
            field.press("End")
            page.locator(".md-search-result__item").first.wait_for()
            found = page.locator(".md-search-result__link").all()
            links = [str(each.get_attribute("href")) for each in found]
            paths = [
                re.sub(r"\?[^#]*", "", link).removeprefix(f"{broker.url}/docs/") for link in links
            ]
            assert expected in paths[:2], (words, paths[:4])  # behind its page
            assert not any(path.startswith(generated) for path in paths[:3]), (words, paths)


def test_the_api_page_has_every_call(browser: Browser, broker: BrokerProcess) -> None:
    """The page of all calls, as the browser shows it, has the types that calls refer to."""
    with opened(browser, broker, "rest/") as page:
        page.locator("article").get_by_role("link", name="SessionOptions").first.click()
        page.wait_for_url("**/rest/#sessionoptions")
        assert page.locator("#sessionoptions").is_visible()


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """With `docs = false` the broker has no path of the documentation; without the setting it has them."""
    off: dict[str, Any] = {"mcp": {"enabled": False}, "e2b": {"enabled": False}, "state_dir": ""}
    unused: Any = None
    paths = [
        {
            path
            for surface in make_surfaces(
                Settings(docs=docs, **off),
                *(unused, tmp_path, unused, unused, unused),
                takes_over=False,
            )
            for path, *_ in surface.routes
        }
        for docs in (True, False)
    ]
    wheels = r"/docs/wheels/(?P<name>[^/]*)"
    assert paths[0] - paths[1] == {"/docs", wheels, r"/docs/(?P<path>.*)"}


def test_a_package_without_a_site_says_so(tmp_path: Path) -> None:
    """Where no site was built, there are no files, and nothing fails."""
    assert Site(tmp_path / "none").files.names == frozenset()
