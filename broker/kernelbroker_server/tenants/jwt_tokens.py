"""JSON Web Tokens of an issuer that the operator names, as tokens of the broker.

The issuer's keys (a JSON Web Key Set) are read at the start and now and then, in the background; an unknown
key is looked for at once. Checking a token does no I/O. Only asymmetric signatures count, so that nobody
who knows the public keys can make a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from .tenant import DEFAULT
from .tokens import TENANT_NAME

logger = logging.getLogger(__name__)

ALGORITHMS = tuple(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512))
_KINDS = ("RSA", "EC", "OKP")
_MAX_TOKEN_CHARS = 16_384
_MAX_KEYS_BYTES = 1024**2
_FETCH_S = 10.0
_REFRESH_S = 600.0
_UNKNOWN_KEY_S = 30.0
"""Between two searches for unknown keys."""
_RETRY_S = 10.0
_LEEWAY_S = 30


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are accepted.

    Attributes:
        issuer, audience: the claims `iss` and `aud` that a token must have.
        jwks: where the keys are: an https URL, or the path of a file.
        tenant_claim: the claim with the tenant's name.
        tenant_prefix: stands before that name, so that no claim names another tenant of this broker.
    """

    issuer: str
    audience: str
    jwks: str
    tenant_claim: str = "sub"
    tenant_prefix: str = "jwt-"


class JwtTokens:
    """Checks the tokens of one issuer."""

    def __init__(self, issuer: Issuer, clock: Callable[[], float] = time.monotonic) -> None:
        self.issuer = issuer
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._loaded_at = float("-inf")
        self._wanted = asyncio.Event()

    def tenant_of(self, token: str) -> str | None:
        """Return the name of the tenant that a token is for; None if the token is invalid."""
        if token.count(".") != 2 or len(token) > _MAX_TOKEN_CHARS:
            return None
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(key_id)
            if key is None:
                if self._clock() - self._loaded_at > _UNKNOWN_KEY_S:
                    self._wanted.set()
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=[*ALGORITHMS, "EdDSA"],
                audience=self.issuer.audience,
                issuer=self.issuer.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        claimed = claims.get(self.issuer.tenant_claim)
        name = f"{self.issuer.tenant_prefix}{claimed}"
        # `default` is the operator's own tenant.
        if (
            not isinstance(claimed, str)
            or not claimed
            or not re.fullmatch(TENANT_NAME, name)
            or name == DEFAULT.name
        ):
            logger.info("a JWT has no valid tenant name in its claim %s", self.issuer.tenant_claim)
            return None
        return name

    async def keep_keys(self) -> None:
        """Read the keys now and then, until cancelled. Run under the supervisor."""
        while True:
            self._wanted.clear()
            pause = _REFRESH_S
            try:
                self._keys = _usable(await self._read())
                self._loaded_at = self._clock()
            except (OSError, ValueError, TypeError, KeyError, jwt.PyJWTError) as exc:
                logger.error("the keys at %s cannot be read: %s", self.issuer.jwks, exc)
                pause = _RETRY_S
            try:
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _read(self) -> Any:
        if not self.issuer.jwks.startswith("https://"):
            return json.loads(await asyncio.to_thread(Path(self.issuer.jwks).read_bytes))
        client = AsyncHTTPClient(force_instance=True, max_body_size=_MAX_KEYS_BYTES)
        try:
            request = HTTPRequest(
                self.issuer.jwks, connect_timeout=_FETCH_S, request_timeout=_FETCH_S
            )
            return json.loads((await client.fetch(request)).body)
        except Exception as exc:  # of Tornado: many kinds
            raise OSError(str(exc)) from exc
        finally:
            client.close()


def _usable(found: Any) -> dict[str | None, jwt.PyJWK]:
    """The keys by id. Keys of other kinds or purposes are left out."""
    keys: dict[str | None, jwt.PyJWK] = {}
    for each in found["keys"]:
        if each.get("kty") in _KINDS and each.get("use", "sig") == "sig" and "d" not in each:
            try:
                keys[each.get("kid")] = jwt.PyJWK.from_dict(each)
            except (
                jwt.PyJWTError,
                ValueError,
                TypeError,
            ) as exc:  # one for encryption, such as X25519
                logger.info("a key of the issuer is left out: %s", exc)
    if not keys:
        raise ValueError("it has no key for signatures")
    return keys
