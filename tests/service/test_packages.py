"""Valid requirements for packages, and the records of an installation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import BadRequest, ConfirmationRequired, PolicyRefused
from kernelbroker.protocol.messages import InstallRequest
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.service.packages import install, requirement
from kernelbroker_server.service.policy import Policies, Policy
from kernelbroker_server.telemetry.audit_observer import AuditObserver

from tests.support.backend import FakeBackend
from tests.support.world import result_of, world


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("numpy", "numpy"),
        ("Name_1.x", "Name_1.x"),
        ("numpy==1.2", "numpy==1.2"),
        ("numpy >=1.2 , < 2", "numpy<2,>=1.2"),
        ("requests[socks]~=2.0", "requests[socks]~=2.0"),
        ("a; python_version < '3'", 'a; python_version < "3"'),
        ("a===1", "a===1"),
    ],
)
def test_requirements_are_normalized(text: str, normal: str) -> None:
    """Names with versions, extras and markers are passed on in their normal form."""
    assert requirement(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-e .",
        "-r requirements.txt",
        "--index-url=http://evil.example",
        "--index-url http://evil.example",
        "-i",
        "--",
        "--pre",
        "-",
        ".",
        "..",
        "./package",
        "../package",
        "/etc/passwd",
        "/data/made.whl",
        "made-1.0-py3-none-any.whl",
        "made.whl",
        "made.tar.gz",
        "MADE.ZIP",
        "made.whl[extra]",
        "file:///data/made.whl",
        "https://evil.example/made.whl",
        "git+https://evil.example/made.git",
        "made @ https://evil.example/made.whl",
        "made@https://evil.example/made.whl",
        "made @ file:///data/made.whl",
        "made @ git+https://evil.example/made.git",
        "made --hash=sha256:00",
        "made --install-option=x",
        "made==1.0 other",
        "made other",
        "made\nother",
        "made\n",
        "made\r--pre",
        "made\0",
        "made; rm -rf /",
        "made && rm",
        "$(id)",
        "`id`",
        "made|sh",
        "made # comment",
        "måde",
        "ｍade",
        "_made",
        "made==",
        "made=1",
        "made==1.0;",
        "[extra]",
    ],
)
def test_other_requirements_are_refused(text: str) -> None:
    """Options, paths, addresses and files are refused."""
    with pytest.raises(BadRequest):
        requirement(text)


ASKED = InstallRequest(packages=["made >= 1.0", "other"])
AS_CELL = "pip install 'made>=1.0' other"


async def test_installations_are_recorded(backend: FakeBackend, tmp_path: Path) -> None:
    """History and audit log have the requirements, and the hash of the equivalent cell."""
    path = tmp_path / "audit.log"
    spec = SandboxSpec(wheels=tmp_path)
    async with world(backend, spec=spec, observer=AuditObserver(Audit(path)).on_event) as w:
        session = await w.open()
        execution = await install(w.service.executions, session, ASKED)
        assert (await result_of(execution)).success
        assert list(session.execution(execution.id).packages) == ["made>=1.0", "other"]
    records = map(json.loads, path.read_text().splitlines())
    (record,) = [each for each in records if each["event"] == "execution"]
    assert record["packages"] == ["made>=1.0", "other"]
    assert record["language"] == "shell"
    assert record["code_sha256"] == hashlib.sha256(AS_CELL.encode()).hexdigest()


async def test_policies_assess_installations(backend: FakeBackend, tmp_path: Path) -> None:
    """A policy treats an installation as the equivalent cell; its confirmation is valid for it alone."""
    spec = SandboxSpec(wheels=tmp_path)
    refusing = Policies({"default": Policy("block", "low")})
    async with world(backend, spec=spec, policies=refusing) as w:
        with pytest.raises(PolicyRefused, match="assessed as low"):
            await install(w.service.executions, await w.open(), ASKED)
    asking = Policies({"default": Policy("confirm", "low")})
    async with world(backend, spec=spec, policies=asking) as w:
        session = await w.open()
        with pytest.raises(ConfirmationRequired) as refused:
            await install(w.service.executions, session, ASKED)
        confirm = refused.value.confirmation
        with pytest.raises(ConfirmationRequired):
            await install(
                w.service.executions, session, InstallRequest(packages=["third"], confirm=confirm)
            )
        with pytest.raises(ConfirmationRequired) as refused:
            await install(w.service.executions, session, ASKED)
        again = InstallRequest(packages=ASKED.packages, confirm=refused.value.confirmation)
        assert (await result_of(await install(w.service.executions, session, again))).success
    async with world(backend, spec=spec, policies=Policies({"default": Policy("block")})) as w:
        assert (await result_of(await install(w.service.executions, await w.open(), ASKED))).success
