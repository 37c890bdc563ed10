"""The keyring says who a token is, and what right it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelbroker_server.__main__ import main
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import TenantLimits, Tenants
from kernelbroker_server.tenants.tokens import TokenFile


def test_names_and_rights_of_tokens(tmp_path: Path) -> None:
    """A token has its name, or else its id, and the operators' right if it or its tenant has it."""
    file = TokenFile(tmp_path / "tokens.json")
    named = file.create("acme", name="ann@example.org", operator=True)
    plain = file.create("acme")
    of_operators = file.create("ops")
    keyring = Keyring(Tenants({"ops": TenantLimits(operator=True)}), "settings", file)
    found = [keyring.tenant_of(each) for each in (named, plain, of_operators, "settings")]
    assert None not in found
    assert [(each.name, each.user, each.operator) for each in found if each is not None] == [
        ("acme", "ann@example.org", True),
        ("acme", plain.split("_")[1], False),
        ("ops", of_operators.split("_")[1], True),
        ("default", "default", True),
    ]
    assert keyring.tenant_of("kb_wrong") is None


def test_tokens_of_operators_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`token create --operator --name` makes such a token, and `token list` says so."""
    monkeypatch.setenv("KERNELBROKER_TOKENS_FILE", str(tmp_path / "tokens.json"))
    assert main(["token", "create", "acme", "--operator", "--name", "ann"]) == 0
    token = capsys.readouterr().out.strip()
    caller = Keyring(Tenants({}), None, TokenFile(tmp_path / "tokens.json")).tenant_of(token)
    assert caller is not None
    assert (caller.user, caller.operator) == ("ann", True)
    assert main(["token", "list"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("acme  ann  operator")
    assert main(["token", "create", "acme", "--name", "a b"]) != 0
    assert "not a valid name" in capsys.readouterr().err
