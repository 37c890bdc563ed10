"""API keys, and the access tokens of sandboxes, which E2B's clients send to a sandbox in their place.

An access token names its tenant and is valid for one session id. It is derived from a key that outlives the
broker, so that tokens stay valid after a restart.
"""

from __future__ import annotations

import contextlib
import hmac
import re

_KEY_PREFIX = "e2b_"
_TENANTS_TOKEN = re.compile("([0-9a-f]{12})([0-9a-f]{64})")
_TOKEN = re.compile(r"kbs_([A-Za-z0-9_.-]{1,64})_([0-9a-f]{64})")


def tokens_of(api_key: str) -> list[str]:
    """Return the tokens of the broker that an API key may stand for.

    It is the token itself. Some of E2B's clients accept nothing but `e2b_` and hexadecimal digits: those of
    a tenant's token, or the bytes of any token in hexadecimal.
    """
    found = [api_key]
    digits = api_key.removeprefix(_KEY_PREFIX)
    if digits != api_key:
        if parts := _TENANTS_TOKEN.fullmatch(digits):
            found.append(f"kb_{parts[1]}_{parts[2]}")
        with contextlib.suppress(ValueError):
            found.append(bytes.fromhex(digits).decode())
    return found


class AccessTokens:
    """Makes and checks access tokens.

    Args:
        key: at least 32 random bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, tenant: str, sandbox_id: str) -> str:
        """Return the token of a tenant's sandbox."""
        message = f"{tenant}\0{sandbox_id}".encode()
        return f"kbs_{tenant}_{hmac.digest(self._key, message, 'sha256').hex()}"

    def tenant_of(self, token: str, sandbox_id: str) -> str | None:
        """Return the name of the tenant whose sandbox a token opens; None if the token is not valid."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        tenant = found[1]
        return tenant if hmac.compare_digest(token, self.of(tenant, sandbox_id)) else None
