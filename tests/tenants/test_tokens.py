"""The token file and authentication with it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kernelbroker_server.__main__ import main
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import TenantLimits, Tenants
from kernelbroker_server.tenants.tokens import TokenError, TokenFile

from tests.support.requires import requires


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_token_belongs_to_one_tenant(path: Path) -> None:
    """Each token belongs to one tenant; anything that is not exactly a token belongs to none."""
    file = TokenFile(path)
    one, other = file.create("acme"), file.create("umbrella")
    assert (file.tenant_of(one), file.tenant_of(other)) == ("acme", "umbrella")
    wrong = one[:-1] + ("0" if one[-1] != "0" else "1")
    mixed = "_".join([*other.split("_")[:2], one.split("_")[2]])
    for token in ("", "kb_", wrong, mixed, one + "\n", one.upper(), one + one, "é" * 50, "\x00"):
        assert file.tenant_of(token) is None


def test_the_file_contains_no_secret(path: Path) -> None:
    """The file does not contain the token, and only its owner may read it."""
    token = TokenFile(path).create("acme")
    assert token.split("_")[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@requires("root")
def test_a_change_keeps_owner_and_mode(path: Path) -> None:
    """A change by root leaves the file to its owner, with its mode, so that the broker can read it."""
    file = TokenFile(path)
    file.create("acme")
    os.chown(path, 1234, 2345)
    path.chmod(0o640)
    file.create("acme")
    file.revoke(file.list()[0].id)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)
    assert stat.S_IMODE(status.st_mode) == 0o640


def test_a_failed_change_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the owner cannot be kept, the file stays as it was, and no other file is left."""
    file = TokenFile(path)
    token = file.create("acme")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(TokenError, match="only its owner and root may change it"):
        file.create("acme")
    assert file.tenant_of(token) == "acme"
    assert list(path.parent.iterdir()) == [path]


def test_changes_are_seen_at_once(path: Path) -> None:
    """A broker that has read the file sees what another process creates and revokes."""
    broker, operator = TokenFile(path), TokenFile(path)
    token = operator.create("acme")
    assert broker.tenant_of(token) == "acme"
    second = operator.create("acme")
    assert broker.tenant_of(second) == "acme"
    operator.revoke(token.split("_")[1])
    assert broker.tenant_of(token) is None
    assert broker.tenant_of(second) == "acme"
    with pytest.raises(TokenError, match="no token"):
        operator.revoke(token.split("_")[1])


def test_a_token_expires(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is valid until it expires."""
    file = TokenFile(path)
    token = file.create("acme", lifetime=60)
    assert file.tenant_of(token) == "acme"
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert file.tenant_of(token) is None
    assert [record.expired for record in file.list()] == [True]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "a\n", "-a", "é", "x" * 65])
def test_an_invalid_tenant_name_is_refused(path: Path, name: str) -> None:
    """The name is refused, and the file stays as it was."""
    with pytest.raises(TokenError, match="not a valid tenant name"):
        TokenFile(path).create(name)
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tokens": [{}]}', '{"tokens": [], "x": 1}'])
def test_an_invalid_file_authenticates_nobody(
    path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not overwritten, the log has the reason, and the token of the settings still works."""
    token = TokenFile(path).create("acme")
    path.write_text(content)
    keyring = Keyring(Tenants({}), "own", TokenFile(path))
    assert keyring.tenant_of(token) is None
    assert "not a token file" in caplog.text
    tenant = keyring.tenant_of("own")
    assert tenant is not None
    assert tenant.name == "default"
    with pytest.raises(TokenError, match="not a token file"):
        TokenFile(path).create("acme")
    assert path.read_text() == content


def test_a_missing_directory_is_named(path: Path) -> None:
    """The error says which directory to create."""
    with pytest.raises(TokenError, match=rf"create its directory first: {path.parent / 'none'}$"):
        TokenFile(path.parent / "none" / "tokens.json").create("acme")


def test_a_deleted_file_authenticates_nobody(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens that were accepted before are refused as well."""
    file = TokenFile(path)
    keyring, token = Keyring(Tenants({}), None, file), file.create("acme")
    assert keyring.tenant_of(token) is not None
    path.unlink()
    assert keyring.tenant_of(token) is None
    assert "No such file" in caplog.text


def test_a_tenant_has_the_limits_of_its_name(path: Path) -> None:
    """A tenant has the limits of its name; one without an entry has none."""
    file = TokenFile(path)
    limits = TenantLimits(sessions=1)
    keyring = Keyring(Tenants({"acme": limits}), None, file)
    acme, other = (keyring.tenant_of(file.create(name)) for name in ("acme", "other"))
    assert acme is not None
    assert other is not None
    assert (acme.limits, other.limits) == (limits, TenantLimits())


@pytest.mark.slow
def test_concurrent_changes_are_not_lost(path: Path) -> None:
    """All changes that several processes make at the same time are kept."""
    file = TokenFile(path)
    kept, *revoked = (file.create("acme") for _ in range(4))
    environ = os.environ | {"KERNELBROKER_TOKENS_FILE": str(path)}
    changes = [["create", "acme"]] * 3 + [["revoke", token.split("_")[1]] for token in revoked]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "kernelbroker_server", "token", *change],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for change in changes
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    made = [token for token in said if token]
    assert len(made) == 3
    assert [file.tenant_of(token) for token in [kept, *made]] == ["acme"] * 4
    assert [file.tenant_of(token) for token in revoked] == [None] * 3
    assert len(file.list()) == 4


def test_the_token_command(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator creates, lists and revokes tokens."""
    monkeypatch.setenv("KERNELBROKER_TOKENS_FILE", str(path))
    assert main(["token", "create", "acme", "--days", "30"]) == 0
    token = capsys.readouterr().out.strip()
    assert TokenFile(path).tenant_of(token) == "acme"
    assert main(["token", "list"]) == 0
    listed = capsys.readouterr().out
    token_id = token.split("_")[1]
    assert token_id in listed
    assert "acme" in listed
    assert token.split("_")[2] not in listed
    assert main(["token", "revoke", token_id]) == 0
    assert TokenFile(path).tenant_of(token) is None
    for wrong in (["revoke", token_id], ["create", "a b"], ["create", "a", "--days", "0"]):
        assert main(["token", *wrong]) == 2
        assert capsys.readouterr().err.startswith("kernelbroker-server: ")
    monkeypatch.delenv("KERNELBROKER_TOKENS_FILE")
    assert main(["token", "list"]) == 2
    assert "tokens_file" in capsys.readouterr().err
