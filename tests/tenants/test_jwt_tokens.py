"""Tokens of an issuer: which are accepted, and how its keys are read."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from kernelbroker_server.config import Settings
from kernelbroker_server.tenants.jwt_tokens import Issuer, JwtTokens
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import TenantLimits, Tenants
from pydantic import ValidationError

from tests.support.waiting import until

ISSUER, AUDIENCE = "https://login.example.org", "https://broker.example.org/mcp"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC: dict[str, dict[str, Any]] = {
    "rsa": json.loads(RSAAlgorithm.to_jwk(RSA.public_key())),
    "ec": json.loads(ECAlgorithm.to_jwk(EC.public_key())),
    "ed": json.loads(OKPAlgorithm.to_jwk(ED.public_key())),
    "secret": {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 32).decode()},
}


def keys(*names: str) -> str:
    return json.dumps({"keys": [{**PUBLIC[name], "kid": name} for name in names]})


def token(
    key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "rsa", **claims: Any
) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "sub": "acme", **claims}
    given = {name: value for name, value in claims.items() if value is not None}
    headers = None if key_id is None else {"kid": key_id}
    return jwt.encode(given, key, algorithm, headers)


@asynccontextmanager
async def reading(path: Path, **options: str) -> AsyncIterator[JwtTokens]:
    """The tokens of an issuer whose keys have been read from this file."""
    tokens = JwtTokens(Issuer(ISSUER, AUDIENCE, str(path), **options))
    task = asyncio.create_task(tokens.keep_keys())
    try:
        await until(lambda: tokens._keys)
        yield tokens
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(keys("rsa", "ec", "ed", "secret"))
    return path


async def test_tokens_of_the_issuer_are_accepted(file: Path) -> None:
    """Of each kind of asymmetric key; the claim names the tenant."""
    async with reading(file) as tokens:
        assert tokens.tenant_of(token()) == "jwt-acme"
        assert tokens.tenant_of(token(EC, "ES256", "ec")) == "jwt-acme"
        assert tokens.tenant_of(token(ED, "EdDSA", "ed")) == "jwt-acme"
        assert tokens.tenant_of(token(aud=["other", AUDIENCE])) == "jwt-acme"
    async with reading(file, tenant_claim="org") as tokens:
        assert tokens.tenant_of(token(org="rival")) == "jwt-rival"
        assert tokens.tenant_of(token()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        token(iss="https://evil.example.org"),
        token(iss=None),
        token(aud="other"),
        token(aud=None),
        token(exp=time.time() - 3600),
        token(exp=None),
        token(nbf=time.time() + 3600),
        token(OTHER),
        token(EC, "ES256", "rsa"),
        token("s" * 32, "HS256", "secret"),
        token("", "none", "rsa"),
        token(key_id="unknown"),
        token(key_id=None),
        token(sub="../../etc"),
        token(sub="a" * 100),
        token(sub=""),
        token(sub=None),
        token()[:-2],
        token() + "A",
        "a.b.c",
        "..",
        "",
        "x" * 100_000,
        "é.ü.ö",
    ],
    ids=itertools.count(),  # tokens are different in each process
)
async def test_other_tokens_are_refused(file: Path, wrong: str) -> None:
    """Of others, for others, expired, unsigned, signed with a secret, or with an invalid tenant."""
    async with reading(file) as tokens:
        assert tokens.tenant_of(wrong) is None


async def test_a_new_key_is_found(file: Path) -> None:
    """A token with an unknown key lets the keys be read again, but not at every request."""
    now = 0.0
    await asyncio.to_thread(file.write_text, keys("rsa"))
    tokens = JwtTokens(Issuer(ISSUER, AUDIENCE, str(file)), clock=lambda: now)
    task = asyncio.create_task(tokens.keep_keys())
    await until(lambda: tokens._keys)
    await asyncio.to_thread(file.write_text, keys("ec"))
    new = token(EC, "ES256", "ec")
    assert tokens.tenant_of(new) is None and not tokens._wanted.is_set()
    now = 31.0
    assert tokens.tenant_of(new) is None
    await until(lambda: "ec" in tokens._keys)
    assert tokens.tenant_of(new) == "jwt-acme" and tokens.tenant_of(token()) is None
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"keys": []}', '{"keys": 5}', keys("secret"), "[]"],
    ids=itertools.count(),
)
async def test_keys_that_cannot_be_read_accept_nothing(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator reads why; the task goes on."""
    path = tmp_path / "jwks.json"
    path.write_text(content)
    tokens = JwtTokens(Issuer(ISSUER, AUDIENCE, str(path)))
    task = asyncio.create_task(tokens.keep_keys())
    await until(lambda: "cannot be read" in caplog.text)
    assert tokens.tenant_of(token()) is None and not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_own_tokens_are_valid_as_before(file: Path) -> None:
    """A keyring takes the broker's tokens and those of the issuer."""
    async with reading(file) as tokens:
        keyring = Keyring(Tenants({}), "the-token", jwt=tokens)
        names = [found and found.name for found in map(keyring.tenant_of, ("the-token", token()))]
        assert names == ["default", "jwt-acme"]
        assert keyring.tenant_of("wrong") is None


def test_keys_must_come_over_https_or_from_a_file() -> None:
    """Anybody on the way could replace keys that come over http."""
    jwt_settings = {"issuer": ISSUER, "audience": AUDIENCE}
    for jwks in ("http://login.example.org/keys", "keys.json"):
        with pytest.raises(ValidationError, match="https URL, or an absolute path"):
            Settings(auth={"jwt": {**jwt_settings, "jwks": jwks}})


CLAIMS = ["default", "ops", "jwt-default", "acme"]


@pytest.mark.parametrize("prefix", ["jwt-", "idp.", ""])
@pytest.mark.parametrize("claim", CLAIMS)
async def test_no_claim_reaches_the_operators(file: Path, claim: str, prefix: str) -> None:
    """A claim is never the tenant `default`, and an operator only where the settings say so of its name."""
    limits = TenantLimits(operator=True)
    tenants = Tenants({"ops": limits, "jwt-ops": limits})
    async with reading(file, tenant_prefix=prefix) as tokens:
        caller = Keyring(tenants, "the-token", jwt=tokens).tenant_of(token(sub=claim))
    if prefix == "" and claim == "default":
        assert caller is None
        return
    assert caller is not None
    assert caller.name == f"{prefix}{claim}"
    assert caller.name != "default"
    assert caller.operator is (caller.name == "jwt-ops" and prefix == "jwt-")


async def test_a_key_of_another_kind_disables_no_other(file: Path) -> None:
    """A key that is not for signatures, or that nobody knows, is left out."""
    found = json.loads(await asyncio.to_thread(file.read_text))
    x25519 = {"kty": "OKP", "crv": "X25519", "x": "A" * 43, "kid": "x"}
    for odd in (
        x25519,
        {"kty": "EC", "crv": "P-0", "x": "A", "y": "A", "kid": "y"},
        {"kty": "RSA"},
    ):
        found["keys"].insert(0, odd)
    await asyncio.to_thread(file.write_text, json.dumps(found))
    async with reading(file) as tokens:
        assert set(tokens._keys) == {"rsa", "ec", "ed"}
        assert tokens.tenant_of(token()) == "jwt-acme"
