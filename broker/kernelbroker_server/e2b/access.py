"""The access tokens of sandboxes, which E2B's clients send to a sandbox in place of the API key.

A token names its tenant and is valid for one session id. It is derived from a key that outlives the broker,
so that tokens stay valid after a restart.
"""

from __future__ import annotations

import hmac
import re

_TOKEN = re.compile(r"kbs_([A-Za-z0-9_.-]{1,64})_([0-9a-f]{64})")


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
