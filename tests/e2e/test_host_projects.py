"""Directories of the host as projects: mounted, read-only or not, for whom, and what stays outside."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import (
    BadRequest,
    CodeOperationError,
    Conflict,
    Forbidden,
    NotFound,
    ProjectOptions,
    Unavailable,
)

from tests.backends.probes import PROJECT_BACKENDS
from tests.e2e.support import BrokerProcess, backend_settings, running_broker, whole_system
from tests.e2e.test_code_operations import make_project
from tests.support.requires import CODE_IMAGE, requires

pytestmark = [*whole_system, requires("git", "ripgrep")]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of the host: a writable root, a read-only one, one of another tenant, and others."""
    base = tmp_path_factory.mktemp("host")
    base.chmod(0o755)
    for name in ("rw", "ro", "acme", "secret"):
        (base / name).mkdir()
    (base / "secret" / "key").write_text("of the host")
    (base / "outer").symlink_to(base / "rw")
    return base


def roots(host: Path) -> str:
    return json.dumps(
        [
            {"path": str(host / "rw"), "mode": "rw"},
            {"path": str(host / "ro")},
            {"path": str(host / "acme"), "mode": "rw", "tenants": ["acme"]},
            {"path": str(host / "outer"), "mode": "rw"},
        ]
    )


@pytest.fixture(scope="module", params=PROJECT_BACKENDS)
def broker(request: pytest.FixtureRequest, host: Path) -> Iterator[BrokerProcess]:
    settings = backend_settings(str(request.param))
    with running_broker(
        CODE__ROOTS=roots(host),
        POOL__MIN_SIZE=0,
        POOL__MAX_SIZE=3,
        POOL__ACQUIRE_TIMEOUT=100,
        POOL__LAUNCH_TIMEOUT=100,
        **settings,
        DOCKER__IMAGE=CODE_IMAGE,
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def local(host: Path) -> Iterator[BrokerProcess]:
    with running_broker(CODE__ROOTS=roots(host), POOL__MIN_SIZE=1, POOL__MAX_SIZE=2) as broker:
        yield broker


def project(host: Path, root: str = "rw", owner: int = 4321) -> Path:
    made = make_project(host / root / secrets.token_hex(4))
    for each in (made, *made.rglob("*")):
        os.chown(each, owner, owner)
    return made


async def test_edits_reach_the_host(broker: BrokerProcess, host: Path) -> None:
    """What operations and cells change is changed on the host, with the owner that it had there."""
    shop = project(host)
    (shop / "shop" / "model.py").chmod(0o600)
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(project=str(shop)) as session,
    ):
        assert "class Account" in (await session.code.read("shop/model.py")).result["content"]
        await session.code.edit("shop/model.py", old="balance=0", new="balance=0.0")
        made = await session.run(
            "import os\nopen('/workspace/project/new.txt', 'w').write('of a cell')\n"
            "print(os.environ['PROJECT_PATH'], len(os.environ['SANDBOX_ID']) > 8)"
        )
        assert made.stdout == "/workspace/project True\n"
        tests = await session.code.run_tests()
        assert (tests.success, tests.result["passed"]) == (True, 1)
        (shop / "of-the-host.txt").write_text("hello")
        assert "hello" in (await session.code.read("of-the-host.txt")).result["content"]
    assert "balance=0.0" in (shop / "shop" / "model.py").read_text()
    assert (shop / "new.txt").read_text() == "of a cell"
    assert (shop / "new.txt").stat().st_uid == 4321
    assert (shop / "shop" / "model.py").stat().st_uid == 4321


async def test_a_project_of_root(
    broker: BrokerProcess, host: Path, request: pytest.FixtureRequest
) -> None:
    """Code that is not root can change a project of root; containers on the host's kernel refuse it."""
    shop = project(host, owner=0)
    async with kernelbroker.connect(broker.url, broker.token) as client:
        if request.node.callspec.id == "docker":
            with pytest.raises(Unavailable, match="belongs to root"):
                async with client.session(project=str(shop)):
                    pass
            return
        async with client.session(project=str(shop)) as session:
            await session.code.edit("made.txt", "new\n")
            await session.code.edit("shop/model.py", old="balance=0", new="balance=1")
    assert (shop / "made.txt").read_text() == "new\n"
    assert (shop / "made.txt").stat().st_uid == os.geteuid()


async def test_a_read_only_root(broker: BrokerProcess, host: Path) -> None:
    """Nothing can be changed: neither by operations nor by code."""
    shop = project(host, "ro")
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(project=str(shop)) as session,
    ):
        assert (await session.code.search("transfer")).result["matches"]
        with pytest.raises(CodeOperationError, match=r"read-only|permissions") as caught:
            await session.code.edit("shop/model.py", old="balance=0", new="balance=1")
        assert caught.value.code in ("conflict", "security")  # the reason depends on the runtime
        written = await session.run("open('/workspace/project/x', 'w')")
        assert not written.success
        unmounted = await session.run(
            "umount /workspace/project; mount -o remount,rw /data/project", language="shell"
        )
        assert not unmounted.success
    assert sorted(path.name for path in shop.iterdir()) == ["pyproject.toml", "shop", "tests"]


async def test_links_out_lead_nowhere(broker: BrokerProcess, host: Path) -> None:
    """A link in the project shows nothing of the host, to operations and to code."""
    shop = project(host)
    (shop / "out").symlink_to(host / "secret" / "key")
    (shop / "up").symlink_to("../../secret")
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(project=str(shop)) as session,
    ):
        with pytest.raises(CodeOperationError):
            await session.code.read("out")
        for path in ("out", "up/key"):
            ran = await session.code.run(f"cat {path}")
            assert not ran.success
            assert "of the host" not in (ran.stdout or "")


async def test_other_directories_are_refused(local: BrokerProcess, host: Path) -> None:
    """Only directories below a root of the tenant are mounted, wherever links lead."""
    shop = project(host)
    (host / "rw" / "link").unlink(missing_ok=True)
    (host / "rw" / "link").symlink_to(host / "secret")
    (host / "rw" / "inside").unlink(missing_ok=True)
    (host / "rw" / "inside").symlink_to(shop)
    (host / "rw" / "file").write_text("x")
    project(host, "acme")
    async with kernelbroker.connect(local.url, local.token) as client:

        async def refused(path: str, error: type[Exception]) -> str:
            with pytest.raises(error) as caught:
                async with client.session(project=path):
                    pass
            return str(caught.value)

        assert "code.roots" in await refused(str(host / "secret"), Forbidden)
        assert "code.roots" in await refused(str(host / "acme"), Forbidden)
        assert "code.roots" in await refused("/etc", Forbidden)
        assert "code.roots" in await refused(f"{host}/rwx", Forbidden)
        assert "link" in await refused(str(host / "rw" / "link"), Forbidden)
        assert "link" in await refused(str(host / "rw" / "link") + "/", Forbidden)
        assert "'..'" in await refused(f"{host}/rw/../secret", BadRequest)
        assert "no directory" in await refused(f"{host}/rw/missing", NotFound)
        assert "is no directory" in await refused(f"{host}/rw/file", BadRequest)
        assert "absolute" in await refused("/a\0b", BadRequest)
        with pytest.raises(BadRequest, match="either a path or"):
            async with client.session(project=ProjectOptions()):
                pass
        async with client.session(project=str(host / "rw" / "inside")) as session:
            assert (await session.code.list()).result["entries"]
        async with client.session(project=str(host / "outer" / shop.name)) as session:
            assert (await session.code.list()).result["entries"]


@pytest.fixture
def mounted(host: Path) -> Iterator[Path]:
    """A project in which another file system is mounted."""
    shop = project(host)
    (shop / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", shop / "mnt"], check=True)
    yield shop
    subprocess.run(["umount", shop / "mnt"], check=True)


async def test_other_mounts_are_refused(local: BrokerProcess, mounted: Path) -> None:
    """A project in which another file system is mounted is refused with its name."""
    async with kernelbroker.connect(local.url, local.token) as client:
        with pytest.raises(Forbidden, match=r"mounted at .*/mnt"):
            async with client.session(project=str(mounted)):
                pass


async def test_the_quota_and_the_workspace(local: BrokerProcess, host: Path) -> None:
    """The project counts neither as the session's files nor for checkpoints, and a restart keeps it."""
    shop = project(host)
    (shop / "large.bin").write_bytes(b"x" * 5_000_000)
    async with kernelbroker.connect(local.url, local.token) as client:
        async with client.session("quota", workspace="kept", project=str(shop)) as session:
            await session.run("open('/data/mine.txt', 'w').write('m'); a = 1")
            saved = await session.checkpoint("with-project")
            assert saved.size < 1_000_000
            fork = await session.fork()
            async with fork:
                assert (await fork.run("print(a)")).stdout == "1\n"
                assert (await fork.code.read("shop/model.py")).success
            await session.restart()
            tests = await session.code.run_tests()
            assert tests.success
            with pytest.raises(Conflict, match="directory of the host"):
                await session.code.upload(shop, replace=True)
            with pytest.raises(Conflict, match="another project"):
                async with client.session("quota", project=str(host / "rw"), keep=True):
                    pass
        async with client.session("after", workspace="kept") as session:
            left = await session.run("import os; print(sorted(os.listdir('/data')))")
            assert left.stdout == "['mine.txt']\n"
    assert (shop / "large.bin").stat().st_size == 5_000_000


async def test_a_session_goes_on_after_a_killed_broker(host: Path) -> None:
    """The next broker adopts the sandbox with its mounted project."""
    shop = project(host)
    with running_broker(CODE__ROOTS=roots(host), POOL__MIN_SIZE=0) as broker:
        async with kernelbroker.connect(broker.url, broker.token) as client:
            session = await client.session("lasting", project=str(shop), keep=True).open()
            await session.run("kept = 42")
            await session.close()
        broker.kill()
        broker.start()
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session("lasting", project=str(shop)) as session,
        ):
            assert (await session.run("print(kept)")).stdout == "42\n"
            await session.code.edit("after.txt", "x")
            await session.restart()
            assert (await session.code.read("after.txt")).success
    assert (shop / "after.txt").exists()
