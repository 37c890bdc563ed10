"""What clients have to show, and what the broker shows them, from the settings.

If settings cannot be used, ConfigError says what to change.
"""

from __future__ import annotations

import logging
import re
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .config import ConfigError, ExtraMissing, Settings
from .config_sections import JwtSettings, TlsSettings
from .tenants.keyring import Keyring
from .tenants.tenant import TenantLimits, Tenants
from .tenants.tokens import TokenError, TokenFile

if TYPE_CHECKING:
    from .tenants.jwt_tokens import JwtTokens

logger = logging.getLogger(__name__)


TOKEN = "token"
"""The file in the state directory with the token that the broker has made."""
_MADE = re.compile(r"e2b_[0-9a-f]{48}")
"""E2B's clients insist on this form, and others take any."""


def token(settings: Settings, state: Path | None, *, new: bool = False) -> str | None:
    """Return the token of the tenant `default`; None if only tokens of the token file are valid.

    Args:
        state: the state directory, where `keep_token` may have left a token; None if there is none.
        new: make another one.
    """
    if settings.token is not None and settings.token_file is not None:
        raise ConfigError("token and token_file are both set; leave one out")
    if settings.token_file is not None:
        try:
            given = settings.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"token_file cannot be read: {exc}") from exc
    elif settings.token is not None:
        given = settings.token.get_secret_value()
    elif settings.tokens_file is not None:
        return None
    else:
        kept = None if new or state is None else _kept_token(state / TOKEN)
        return kept or f"e2b_{secrets.token_hex(24)}"
    if not given:
        raise ConfigError("token is empty; leave it out to get a generated one")
    return given


def is_made(settings: Settings) -> bool:
    """Whether the broker has made its token, as the settings name none."""
    given = (settings.token, settings.token_file, settings.tokens_file)
    return all(each is None for each in given)


def keep_token(token: str, state: Path) -> None:
    """Leave a token to the next brokers, so that a restart locks nobody out. Raises OSError."""
    if _kept_token(state / TOKEN) == token:
        return
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=state, delete=False) as file:  # mode 0600
        file.write(f"{token}\n")
    Path(file.name).rename(state / TOKEN)


def _kept_token(path: Path) -> str | None:
    """The token in a file; None if there is none, or no longer a whole one."""
    try:
        kept = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}; remove it, or set token") from exc
    if not _MADE.fullmatch(kept):
        logger.warning("%s has no token, so there is a new one", path)
        return None
    return kept


def operator_tokens(settings: Settings, token: str | None) -> tuple[str, ...]:
    """Return the tokens that give access to the metrics."""
    secret = settings.metrics_token
    metrics = None if secret is None else secret.get_secret_value()
    return tuple(each for each in (token, metrics) if each)


def keyring(settings: Settings, token: str | None) -> Keyring:
    """Return the valid tokens, with the tenants and their limits."""
    limits = {
        name: TenantLimits(
            sessions=tenant.max_sessions,
            concurrent=tenant.max_concurrent,
            rate=tenant.rate,
            templates=None if tenant.templates is None else frozenset(tenant.templates),
            policy=tenant.policy,
            policy_threshold=tenant.policy_threshold,
            operator=tenant.operator,
        )
        for name, tenant in settings.tenants.items()
    }
    file = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
    if file is not None:
        try:
            count = len(file.list())
        except TokenError as exc:
            raise ConfigError(f"tokens_file: {exc}") from exc
        if not count and token is None:
            logger.warning(
                "no client can authenticate, since there is no token: create one with "
                "`kernelbroker-server token create TENANT`; a restart is not needed"
            )
    return Keyring(Tenants(limits), token, file, _jwt_tokens(settings.auth.jwt))


def _jwt_tokens(settings: JwtSettings | None) -> JwtTokens | None:
    if settings is None:
        return None
    try:
        from .tenants.jwt_tokens import Issuer, JwtTokens
    except ModuleNotFoundError as exc:
        raise ExtraMissing("auth.jwt", "jwt", exc.name) from exc
    return JwtTokens(Issuer(**settings.model_dump()))


def tls(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context; None for plain HTTP."""
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"tls.certificate and tls.key cannot be used: {exc}") from exc
    return context
