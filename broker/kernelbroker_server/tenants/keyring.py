"""Recognises who asks by the token that is shown."""

from __future__ import annotations

import hmac
import logging

from .tenant import DEFAULT, Tenant, Tenants
from .tokens import TokenError, TokenFile

logger = logging.getLogger(__name__)


class Keyring:
    """
    Args:
        tenants: who there may be.
        token: the one of the tenant `default`; None if there is none.
        file: more tokens; None if there is no such file.
    """

    def __init__(
        self, tenants: Tenants, token: str | None = None, file: TokenFile | None = None
    ) -> None:
        self._tenants = tenants
        self._token = token
        self._file = file

    def tenant_of(self, token: str) -> Tenant | None:
        """Who holds this token; None for nobody. A token file that cannot be read lets nobody in."""
        if self._token is not None and hmac.compare_digest(token.encode(), self._token.encode()):
            return self._tenants[DEFAULT.name]
        try:
            name = self._file.tenant_of(token) if self._file is not None else None
        except TokenError as error:
            logger.error("nobody is let in by the token file: %s", error)
            return None
        return None if name is None else self._tenants[name]
