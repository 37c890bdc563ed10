"""An upgrade from the release before: sessions, cells, files and results go on; old and new clients work.

The release before is built from its archive beside this file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.added_field import ADDED
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.sandbox_record import digest

from tests.e2e.support import BrokerProcess, call, free_port, whole_system

pytestmark = whole_system

BEFORE = "0.1.0"
"""The version of the release before. A release changes it: see docs/versions.md."""
TOKEN = "the token of this test"
USAGE = Path(__file__).with_name("usage.py")
LINES = 40


@pytest.fixture(scope="module")
def before(request: pytest.FixtureRequest) -> Path:
    """A directory with the packages of the release before; made once."""
    site = request.config.cache.mkdir(f"release-{BEFORE}") / "site"
    if not site.exists():
        with tempfile.TemporaryDirectory() as name:
            source, new = Path(name, "source"), Path(name, "site")
            source.mkdir()
            archive = Path(__file__).with_name(f"release-{BEFORE}.tar.xz")
            subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
            uv = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--no-deps"]
            packages = [source, source / "broker", source / "kernel_image"]
            options = ["--no-build-isolation", "--python", sys.executable, "--target", new]
            subprocess.run([*uv, *options, *packages], check=True)
            shutil.copytree(new, site)
    return site


class UpgradedBroker(BrokerProcess):
    """A broker whose packages are those of `site`, or those of this tree if it is None."""

    site: Path | None = None

    @property
    def environ(self) -> dict[str, str]:
        if self.site is None:
            return super().environ
        # The release before has no Kubernetes, and refuses settings that it does not know.
        known = {n: v for n, v in super().environ.items() if "KUBERNETES" not in n}
        return known | {"PYTHONPATH": str(self.site)}


@pytest.fixture
def broker(before: Path) -> Iterator[UpgradedBroker]:
    """The broker of the release before, which leaves its sandboxes to the next one."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = UpgradedBroker(
            Path(directory), TOKEN=TOKEN, PORT=free_port(), POOL__MAX_SIZE=4, SHUTDOWN="adopt"
        )
        broker.site = before
        try:
            yield broker
        finally:
            broker.kill()
            for pid in procfs.started_in(broker.data_dir):
                os.kill(pid, signal.SIGKILL)


def use(broker: UpgradedBroker, site: Path | None) -> str:
    """Run usage.py with the SDK of a release. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, USAGE, broker.url, TOKEN],
        env=os.environ | ({} if site is None else {"PYTHONPATH": str(site)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


async def test_an_upgrade(broker: UpgradedBroker, before: Path) -> None:
    """Sessions and running cells go on, what was kept is there, and each SDK works with each broker."""
    broker.start()
    assert (await call(broker, "GET", "/health"))[1]["version"] == BEFORE
    assert use(broker, None).splitlines()[0] == version("kernelbroker")
    code = f"import time\nfor i in range({LINES}): print(i, flush=True); time.sleep(0.25)"
    async with kernelbroker.connect(broker.url, TOKEN) as client:
        async with client.session("first", workspace="kept") as session:
            await session.files.write("notes/a.txt", "kept")
            result = await session.run("x = 6 * 7\nprint(x)")
            await session.checkpoint("saved")
        mine = client.session("mine", keep=True)
        await mine.run("y = 'still here'\nopen('b.txt', 'w').write('mine')")
        handle = await mine.submit(code)
        seen = []
        async for event in handle.events():
            if isinstance(event, events.Stdout) and not seen:
                assert broker.stop() == 0
                broker.site = None
                broker.start()
            if isinstance(event, events.Stdout):
                seen.append(event.content)
        assert "".join(seen) == "".join(f"{i}\n" for i in range(LINES))
        assert (await handle.result()).success
        assert (await call(broker, "GET", "/health"))[1]["version"] == version("kernelbroker")
        again = await mine.run("print(y, open('b.txt').read())")
        assert again.stdout == "still here mine\n"
        assert (await client.result("first", result.execution_id)).stdout == "42\n"
        async with client.session("next", workspace="kept") as session:
            assert await session.files.read_text("notes/a.txt") == "kept"
        async with client.session(from_checkpoint="saved") as session:
            assert (await session.run("print(x)")).stdout == "42\n"
        await mine.close()
    assert use(broker, before).splitlines()[0] == BEFORE
    assert broker.stop(signal.SIGINT) == 0
    assert broker.complaints() == []


def test_a_new_field_of_a_spec_keeps_sandboxes_adoptable() -> None:
    """A field that a release adds does not make sandboxes of the release before another kind."""

    @dataclasses.dataclass(frozen=True)
    class Later(SandboxSpec):
        new: int = dataclasses.field(default=0, metadata=ADDED)

    Later.__qualname__ = "SandboxSpec"
    assert digest(Later(template="a")) == digest(SandboxSpec(template="a"))
    assert digest(Later(template="a", new=1)) != digest(SandboxSpec(template="a"))
    assert digest(SandboxSpec(template="a")) != digest(SandboxSpec(template="b"))
