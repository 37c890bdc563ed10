"""Hostile wheels: they get a directory and cannot change the image's packages."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, call, whole_system
from tests.support.wheels import make_wheel

pytestmark = whole_system

OUTSIDE = {
    "dotdot": "../../../../outside.py",
    "absolute": "/data/outside.py",
    "within": "within-1.0.data/data/../../../../outside.py",
    "unknown": "unknown-1.0.data/elsewhere/outside.py",
}
RUNS = "open('/data/ran-' + __name__, 'w').close()\n"
SHADOWED = ("json", "re", "IPython", "ipykernel", "tornado", "pandas", "pip", "kernelbroker_kernel")
MIB = 1024**2


def make_source(directory: Path) -> None:
    """A package that needs a build, with its own build code."""
    setup = f"from setuptools import setup\n{RUNS}setup(name='source', version='1.0')\n"
    path = directory / "source-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("source-1.0/setup.py")
        info.size = len(setup)
        archive.addfile(info, io.BytesIO(setup.encode()))
    path.chmod(0o644)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(prefix="kb-") as own:
        wheels = Path(name)
        wheels.chmod(0o755)  # sandboxes are users of their own
        for package, inside in OUTSIDE.items():
            make_wheel(wheels, package, "1.0", files={inside: RUNS})
        entry_points = "[console_scripts]\n../../../escaped = script:VERSION\n"
        make_wheel(
            wheels, "script", "1.0", files={"script-1.0.dist-info/entry_points.txt": entry_points}
        )
        starting = dict.fromkeys(("sitecustomize.py", "usercustomize.py", "keyring.py"), RUNS)
        shadowing = dict.fromkeys((f"{module}/__init__.py" for module in SHADOWED), RUNS)
        at_start = {"starts.pth": "import os; open('/data/ran-pth', 'w')\n"}
        make_wheel(wheels, "shadows", "1.0", files={**starting, **shadowing, **at_start})
        claimed = ("../../../../../kept.txt", "../../../../kept.txt", "/data/kept.txt")
        make_wheel(wheels, "claims", "1.0", record=claimed)
        make_wheel(wheels, "claims", "2.0")
        make_wheel(wheels, "claims", "3.0", files={"../../../../outside.py": ""})
        needs = ("claims==3.0", "second>=2")
        make_wheel(wheels, "above", "1.0")
        make_wheel(wheels, "above", "2.0", requires=needs)
        make_wheel(wheels, "second", "1.0")
        make_wheel(wheels, "second", "2.0")
        make_wheel(wheels, "large", "1.0", files={"large.bin": bytes(60 * MIB)})
        settings = {"settings-1.0.data/data/pip.conf": "[install]\ndry-run = true\n"}
        make_wheel(wheels, "settings", "1.0", files=settings)
        make_wheel(wheels, "plain", "1.0")
        make_source(wheels)
        broker = BrokerProcess(Path(own), PACKAGES__WHEELS=wheels, SANDBOX__WORKSPACE_SIZE="40MiB")
        with broker.running():
            yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


@pytest.fixture
async def session(client: kernelbroker.Broker) -> AsyncIterator[kernelbroker.Session]:
    """A session that the tests share, since each test asserts that nothing of it is left."""
    async with client.session("hostile", keep=True) as session:
        assert (await session.run("open('/data/kept.txt', 'w').write('mine')")).success
        yield session


PACKAGES = """
import os
print([name for _, directories, files in os.walk("/data/.packages") for name in directories + files])
"""


async def written(session: kernelbroker.Session) -> list[str]:
    """What there is in the workspace, but for the session's own packages."""
    result = await session.run("import os; print(*sorted(os.listdir('/data')))")
    return [name for name in result.stdout.split() if name != ".packages"]


async def test_a_wheel_with_files_elsewhere_is_refused(session: kernelbroker.Session) -> None:
    """A wheel with files outside of the session's directory is refused, and leaves nothing."""
    before = (await session.run(PACKAGES)).stdout
    for package in OUTSIDE:
        result = await session.install(package)
        assert result.error is not None and result.error.startswith("InstallFailed: "), result.error
        assert await written(session) == ["kept.txt"]
        assert (await session.run(PACKAGES)).stdout == before


async def test_packages_of_the_image_are_not_replaced(client: kernelbroker.Broker) -> None:
    """Packages of the image are not replaced in any kernel, and nothing runs at its start."""
    imports = f"import {', '.join(SHADOWED)}, shadows"
    where = (
        f"{imports}; print([m.__name__ for m in ({', '.join(SHADOWED)}) if 'data' in m.__file__])"
    )
    async with client.session() as session:
        assert (await session.install("shadows")).success
        for _ in range(2):
            assert (await session.run(where)).stdout == "[]\n"
            assert await written(session) == []
            assert "already satisfied" in (await session.install("shadows")).stdout
            await session.restart()


async def test_a_wheel_cannot_configure_pip(session: kernelbroker.Session) -> None:
    """A wheel cannot bring settings for later installations."""
    assert (await session.install("settings")).success
    result = await session.install("plain")
    assert "Successfully installed plain-1.0" in result.stdout, result.error


async def test_scripts_stay_in_the_sessions_directory(session: kernelbroker.Session) -> None:
    """A script of any name is put into the session's directory; later pips refuse it."""
    result = await session.install("script")
    assert result.success or "outside the scripts directory" in str(result.error), result.error
    assert await written(session) == ["kept.txt"]
    assert not await session.files.exists(".packages/escaped")


async def test_a_false_record_removes_no_files_elsewhere(session: kernelbroker.Session) -> None:
    """Replacing a package removes no file that its record claims and the session's directory has not."""
    assert (await session.install("claims==1.0")).success
    result = await session.install("claims==2.0")
    assert result.success, result.error
    assert "Successfully uninstalled claims-1.0" in result.stdout
    assert await written(session) == ["kept.txt"]


async def test_a_failure_among_several_packages_changes_nothing(
    session: kernelbroker.Session,
) -> None:
    """If one of several packages cannot be installed, all earlier versions stay."""
    assert (await session.install("above==1.0", "second==1.0", "claims==2.0")).success
    before = (await session.run(PACKAGES)).stdout
    failed = await session.install("above==2.0")
    assert not failed.success
    assert "Successfully uninstalled second-1.0" in failed.stdout, failed.stdout
    assert (await session.run(PACKAGES)).stdout == before
    versions = "import above, claims, second; print(above.VERSION, claims.VERSION, second.VERSION)"
    assert (await session.run(versions)).stdout == "1.0 2.0 1.0\n"
    again = await session.install("above==1.0", "second==1.0", "claims==2.0")
    assert again.success
    assert "already satisfied: above==1.0 in ./.packages/lib/" in again.stdout
    assert "/copy" not in again.stdout + failed.stdout + failed.stderr


async def test_a_failed_replacement_keeps_the_old_version(session: kernelbroker.Session) -> None:
    """If a new version cannot be installed, the old one stays."""
    assert (await session.install("claims==2.0")).success
    assert not (await session.install("claims==3.0")).success
    assert (await session.run("import claims; print(claims.VERSION)")).stdout == "2.0\n"
    assert "already satisfied" in (await session.install("claims==2.0")).stdout


async def test_source_packages_are_not_built(session: kernelbroker.Session) -> None:
    """A package that needs a build is not installed, and its code does not run."""
    result = await session.install("source")
    assert result.error == "InstallFailed: No matching distribution found for source"
    assert await written(session) == ["kept.txt"]


async def test_a_package_that_does_not_fit_changes_nothing(session: kernelbroker.Session) -> None:
    """A package that does not fit leaves the workspace unchanged."""
    result = await session.install("large")
    assert result.error is not None
    assert result.error.startswith(("InstallFailed: ", "QuotaExceeded: ")), result.error
    after = await session.run("open('/data/more', 'wb').write(bytes(20 * 1024**2))")
    assert (after.success, after.stderr) == (True, "")
    await session.files.delete("more")
    assert not (await session.run("import large")).success


async def test_partial_files_of_a_dead_kernel_are_removed(session: kernelbroker.Session) -> None:
    """Partial files of a dead kernel are removed by the next installation."""
    await session.run("import os; os.makedirs('/data/.packages/tmp-dead/made/lib')")
    assert (await session.install("claims==2.0")).success
    found = await session.run("print([n for n in os.listdir('/data/.packages') if 'tmp' in n])")
    assert found.stdout == "[]\n"


async def test_packages_stay_with_the_workspace(client: kernelbroker.Broker) -> None:
    """A session with the files of an earlier one has its packages."""
    async with client.session(workspace="packaged") as session:
        assert (await session.install("claims==2.0")).success
    async with client.session(workspace="packaged") as session:
        result = await session.run("import claims; print(claims.VERSION)")
        assert result.stdout == "2.0\n", result.error


async def test_too_many_requirements_are_refused(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """More than a hundred requirements, or longer ones than 200 characters, are refused."""
    path = f"/api/v1/sessions/{session.session_id}/packages"
    for packages in (["claims"] * 101, ["claims"] * 10_000, ["c" * 201], [""], [None], "claims"):
        status, answer = await call(broker, "POST", path, {"packages": packages})
        assert (status, answer["error"]["code"]) == (400, "bad_request")
