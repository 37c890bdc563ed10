"""Packages that a session installs from wheels of the test, without a network."""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import BadRequest, Conflict

from tests.e2e.support import BrokerProcess, call, opened, running_broker, whole_system
from tests.support.wheels import make_wheel

pytestmark = whole_system


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kb-wheels-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # sandboxes are users of their own
        make_wheel(directory, "firstmade", "1.0")
        make_wheel(directory, "firstmade", "2.0")
        make_wheel(directory, "secondmade", "1.0", requires=("firstmade>=1", "pandas"))
        make_wheel(directory, "tqdm", "999.0")
        make_wheel(directory, "wantsmore", "1.0", requires=("tqdm>=999",))
        yield directory


@pytest.fixture(scope="module")
def offline_broker(wheels: Path) -> Iterator[BrokerProcess]:
    with running_broker(PACKAGES__WHEELS=wheels) as broker:
        yield broker


@pytest.fixture
async def offline(offline_broker: BrokerProcess) -> AsyncIterator[kernelbroker.Session]:
    async with (
        kernelbroker.connect(offline_broker.url, offline_broker.token) as client,
        client.session() as session,
    ):
        yield session


async def test_an_installed_package_can_be_imported(offline: kernelbroker.Session) -> None:
    """The next cell imports an installed package, also after the kernel was replaced."""
    before = await offline.run("import firstmade")
    assert not before.success
    seen: list[str] = []
    result = await offline.install("firstmade==1.0", on_stdout=seen.append)
    assert result.success, result.error
    assert "Successfully installed firstmade-1.0" in result.stdout
    assert "".join(seen) == result.stdout
    assert result.files == []
    version = "import firstmade; version = firstmade.VERSION"
    assert (await offline.run(version, result_var="version")).return_value == "1.0"
    await offline.restart()
    after = await offline.run(version, result_var="version")
    assert after.success, after.error
    assert after.return_value == "1.0"


@pytest.mark.parametrize("pip", ["!pip", "%pip"])
async def test_pip_in_a_cell_uses_the_wheels(offline: kernelbroker.Session, pip: str) -> None:
    """pip that a cell runs itself finds the operator's wheels, as `install` does."""
    result = await offline.run(f"{pip} install --target more firstmade==1.0")
    assert "Successfully installed firstmade-1.0" in result.stdout
    found = "import sys; sys.path.append('more'); import firstmade; version = firstmade.VERSION"
    assert (await offline.run(found, result_var="version")).return_value == "1.0"


async def test_installed_packages_are_reused(offline: kernelbroker.Session) -> None:
    """An installed version is not installed again; another version replaces it."""
    assert (await offline.install("firstmade==1.0")).success
    result = await offline.install("secondmade")
    assert result.success, result.error
    assert "Successfully installed secondmade-1.0\n" in result.stdout
    assert (await offline.install("firstmade==2.0")).success
    listed = await offline.run(
        """
import sys, importlib.metadata as m, firstmade, secondmade, pandas
found = [firstmade.VERSION, m.version("firstmade"), "/data" in pandas.__file__, "packages" in sys.path[-1],
         len([d for d in m.distributions() if d.metadata["Name"] == "firstmade"])]
""",
        result_var="found",
    )
    assert listed.return_value == ["2.0", "2.0", False, True, 1], listed.error


async def test_other_versions_of_the_image_are_refused(offline: kernelbroker.Session) -> None:
    """Another version of a package of the image is refused with the reason."""
    for name in ("tqdm==999.0", "wantsmore"):
        result = await offline.install(name)
        assert not result.success
        assert result.error is not None and result.error.startswith("InstallFailed: ")
    result = await offline.run("import tqdm; version = tqdm.__version__", result_var="version")
    assert result.return_value != "999.0"


async def test_a_failure_says_why(offline: kernelbroker.Session) -> None:
    """The result has pip's last error, and pip's messages are its output."""
    result = await offline.install("nothing-of-that-name>=3")
    assert not result.success
    assert result.error == (
        "InstallFailed: No matching distribution found for nothing-of-that-name>=3"
    )
    assert "Could not find a version" in result.stderr
    assert (await offline.run("1")).success


async def test_invalid_requirements_are_refused(
    offline: kernelbroker.Session, session: kernelbroker.Session, broker: BrokerProcess
) -> None:
    """Invalid requirements are refused, and all of them if there is neither index nor wheels."""
    for bad in ("--index-url=http://x", "name @ https://x/y.whl", "./here.whl", "a b"):
        with pytest.raises(BadRequest, match=r"requirement|address"):
            await offline.install("firstmade", bad)
    with pytest.raises(BadRequest):
        await offline.install()
    with pytest.raises(Conflict, match=r"packages\.wheels"):
        await session.install("firstmade")


async def test_packages_over_rest(
    offline_broker: BrokerProcess, offline: kernelbroker.Session
) -> None:
    """An installation is an execution, in each form of the answer."""
    path = f"/api/v1/sessions/{offline.session_id}/packages"
    body = {"packages": ["firstmade"]}
    async with opened(offline_broker, "POST", path, body, accept="text/event-stream") as response:
        assert response.status == 200
        text = await response.rest()
        assert b"event: result" in text and b"event: stdout" in text
    status, answer = await call(offline_broker, "POST", path, body, accept="application/json")
    assert (status, answer["result"]["success"]) == (200, True)
    assert "already satisfied" in answer["stdout"]
    status, _ = await call(offline_broker, "POST", path, {"packages": [], "user": True})
    assert status == 400
    listed = path.replace("packages", "executions")
    _, answer = await call(offline_broker, "GET", listed)
    assert [each["packages"] for each in answer["executions"]] == [["firstmade"]] * 2


async def test_langchain_installs(offline_broker: BrokerProcess) -> None:
    """LangChain's tool installs for the thread, and tells of what cannot be installed."""
    with warnings.catch_warnings(action="ignore"):  # of libraries that are not ours
        tools = importlib.import_module("kernelbroker.langchain")
    config = {"configurable": {"thread_id": "installs"}}
    async with kernelbroker.connect(offline_broker.url, offline_broker.token) as client:
        named = {each.name: each for each in tools.create_sandbox_tools(client)}
        install, run = named["install_packages"], named["execute_python"]
        found = json.loads(await install.ainvoke({"packages": ["firstmade==1.0"]}, config))
        assert found["success"] and "installed firstmade-1.0" in found["output"]
        code = {"code": "import firstmade; firstmade.VERSION"}
        assert json.loads(await run.ainvoke(code, config))["output"] == "'1.0'"
        found = json.loads(await install.ainvoke({"packages": ["neither"]}, config))
        assert not found["success"] and "neither" in found["error"] + found["output"]
        await (await client.attach("installs", keep=False)).close()
