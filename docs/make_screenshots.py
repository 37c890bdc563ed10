"""Makes the pictures of the console in docs/: starts a broker, lets agents work, and looks at the page.

Needs Chromium, and the environments of `make environments`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOKEN = "a-token-for-the-pictures"
MAX_BYTES = 150_000

SALES = """import pandas as pd
sales = pd.DataFrame({"city": ["Oslo", "Bern", "Lima", "Oslo"], "amount": [10, 20, 7, 5]})
print(f"{len(sales)} rows from {sales.city.nunique()} cities")
sales.groupby("city", as_index=False).amount.sum()"""
PLOT = """import matplotlib.pyplot as plt, numpy as np
fig, ax = plt.subplots(figsize=(6.2, 1.9))
days = np.arange(60)
ax.fill_between(days, 20 + days + 8 * np.sin(days / 4), alpha=.2)
ax.plot(days, 20 + days + 8 * np.sin(days / 4))
ax.set_title("orders a day"); plt.show()"""
BIG = "orders = pd.DataFrame({'id': np.arange(5_000_000), 'amount': np.random.rand(5_000_000)})"
TRAINING = """import time
for step in range(1, 401):
    bar = "█" * (step // 10) + "░" * (40 - step // 10)
    print(f"\\r\\x1b[32m{bar}\\x1b[0m {step / 4:.0f} %  loss {1 / step + 0.1:.3f}", end="", flush=True)
    time.sleep(0.2)"""
RISKY = "# free some space first\nimport os\nos.system('rm -rf /')"


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Run a broker with three templates. Yields its URL."""
    runtime_file = directory / "broker.json"
    settings = {
        "PORT": 0,
        "TOKEN": TOKEN,
        "RUNTIME_FILE": runtime_file,
        "LOCAL__KERNEL_PYTHON": ROOT / ".venv-kernel" / "bin" / "python",
        "LOCAL__DATA_DIR": directory / "data",
        "LOCAL__RUN_DIR": directory / "run",
        "AUDIT_LOG": directory / "audit.log",
        "POOL__MIN_SIZE": 2,
        "POOL__MAX_SIZE": 8,
        "SANDBOX__POLICY": "confirm",
        "TEMPLATES": '{"default": {}, "analysis": {"pool": {"min_size": 1, "max_size": 4}}}',
        "SHUTDOWN": "close",
    }
    environ = os.environ | {f"KERNELBROKER_{name}": str(value) for name, value in settings.items()}
    process = subprocess.Popen([sys.executable, "-m", "kernelbroker_server"], env=environ)
    try:
        while not runtime_file.exists():
            if process.poll() is not None:
                raise SystemExit("the broker does not start")
            time.sleep(0.1)
        yield json.loads(runtime_file.read_text())["url"]
    finally:
        process.terminate()
        process.wait()


def call(url: str, method: str, path: str, body: object = None, client: str = "") -> None:
    request = Request(
        f"{url}/api/v1{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "X-Kernelbroker-Client": client},
    )
    while True:
        try:
            with urlopen(request) as answer:
                answer.read()
            return
        except HTTPError as error:
            if error.code == 409:  # a confirmation is asked for
                return
            if error.code != 503:  # the machine is busy
                raise
            time.sleep(1)


def work(url: str) -> None:
    """Let agents work in several sessions."""
    for name, template in (
        ("sales-report", "default"),
        ("train-7f3a", "default"),
        ("cleanup", "default"),
        ("notebook-ann", "analysis"),
    ):
        call(url, "POST", "/sessions", {"session_id": name, "template": template})
    for code in (SALES, PLOT, BIG):
        call(url, "POST", "/sessions/sales-report/exec", {"code": code, "timeout": 100}, "sdk")
    call(url, "POST", "/sessions/notebook-ann/exec", {"code": "sum(range(10))"}, "console")
    context = {"context_id": "ann-shell", "language": "shell"}
    call(url, "POST", "/sessions/notebook-ann/contexts", context, "console")
    call(url, "POST", "/sessions/ann-shell/exec", {"code": "ls -la"}, "console")
    call(url, "POST", "/sessions/cleanup/exec", {"code": "import os; os.listdir('/data')"}, "sdk")
    call(url, "POST", "/sessions/cleanup/executions", {"code": RISKY}, "sdk")
    call(url, "POST", "/sessions/train-7f3a/executions", {"code": TRAINING, "timeout": 200}, "sdk")


@contextmanager
def signed_in(
    browser: Browser, url: str, size: tuple[int, int], scheme: str = "light"
) -> Iterator[Page]:
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, locale="en-GB")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{url}/console")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.locator("tr", has_text="sales-report").wait_for()
    yield page
    context.close()


def take(page: Page, name: str) -> None:
    page.wait_for_timeout(2500)
    path = DOCS / f"console-{name}.png"
    page.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path.name} has more than {MAX_BYTES:,} bytes")


def use_font(home: Path) -> None:
    """Let Chromium find a font with Chinese characters, the one of the sandboxes."""
    (home / ".fonts").mkdir(parents=True)
    fonts = (ROOT / "kernel_image" / "kernelbroker_kernel" / "fonts").glob("*.ttf")
    for font in fonts:
        shutil.copy(font, home / ".fonts")
    os.environ["HOME"] = str(home)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        use_font(directory / "home")
        with running_broker(directory) as url, sync_playwright() as playwright:
            work(url)
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--disable-gpu", "--no-proxy-server"],
            )
            desktop, phone = (1280, 800), (390, 760)
            with signed_in(browser, url, desktop) as page:
                page.goto(f"{url}/console#/sessions/sales-report")
                page.locator("img.output-image").wait_for()
                take(page, "session")
                page.goto(f"{url}/console#/sandboxes")
                take(page, "operators")
            with signed_in(browser, url, desktop, "dark") as page:
                take(page, "dark")
            with signed_in(browser, url, phone) as page:
                page.goto(f"{url}/console#/sessions/cleanup")
                page.locator(".confirmation").wait_for()
                take(page, "phone")
            with signed_in(browser, url, phone, "dark") as page:
                page.goto(f"{url}/console#/sessions/train-7f3a")
                page.locator(".cell.running").wait_for()
                take(page, "phone-dark")
            browser.close()


if __name__ == "__main__":
    main()
