"""Checks of settings, tokens and certificates: what decides whether the broker starts, and who gets in."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import credentials
from ..advice import as_root, command, server
from ..app import Broker
from ..backends.base import BackendUnavailable
from ..config import ConfigError, Settings
from ..tenants.tokens import TokenError, TokenFile
from .findings import Finding, error, from_error, ok, warning
from .patient import Patient

_EXPIRES_SOON_S = 30 * 86_400
_EXPIRED, _NOT_YET_VALID = 10, 9
"""Codes of OpenSSL's verification."""


def settings(patient: Patient) -> list[Finding]:
    """Whether a broker can be made from the settings."""

    async def make() -> None:
        Broker(patient.settings)  # not started

    try:
        asyncio.run(make())
    except (ConfigError, BackendUnavailable, OSError, ValueError) as exc:
        remedy = "Correct the setting; docs/configuration.md describes it"
        return [from_error("settings", exc, remedy)]
    return [ok("settings", f"those of {patient.source} are valid")]


def tokens(patient: Patient) -> list[Finding]:
    """Whether clients can authenticate, and nobody else can read the secrets."""
    own = patient.settings
    found: list[Finding] = []
    try:
        token = credentials.token(own, patient.state_dir)
    except ConfigError as exc:
        return [from_error("tokens", exc, _for_us_alone(own.token_file))]
    for key, path in _secret_files(patient):
        found += _secret_file(key, path)
    if own.tokens_file is not None:
        try:
            records = TokenFile(own.tokens_file).list()
        except TokenError as exc:
            again = server(patient.config, "token", "create", _tenant(own))
            remedy = f"Restore it from a backup, or move it away and make it again: {again}"
            return [*found, from_error("tokens", exc, remedy)]
        valid = sum(not each.expired for each in records)
        if not valid and token is None and own.auth.jwt is None:
            why = "all tokens have expired" if records else "there is no token"
            remedy = f"Create one: {server(patient.config, 'token', 'create', _tenant(own))}"
            found.append(error("tokens", f"no client can authenticate: {why}", remedy))
    return found or [ok("tokens", "clients can authenticate")]


def _for_us_alone(path: Path | None) -> str:
    """How a secret gets to be read by the broker's user and nobody else."""
    if path is None:
        return "Let nobody but the broker's user read it"
    owned, kept = as_root("chown", os.geteuid(), path), as_root("chmod", "600", path)
    return f"Let the broker's user read it, and nobody else: {owned}, {kept}"


def _tenant(settings: Settings) -> str:
    """A tenant that a token can be for."""
    return next(iter(settings.tenants), "default")


def _secret_files(patient: Patient) -> Iterator[tuple[str, Path]]:
    own = patient.settings
    named = {"token_file": own.token_file, "tokens_file": own.tokens_file, "tls.key": own.tls.key}
    for key, path in named.items():
        if path is not None:
            yield key, path
    for name, upstream in own.upstreams.items():
        if upstream.token_file is not None:
            yield f"upstreams.{name}.token_file", upstream.token_file
    for forge in own.code.forges:
        if forge.token_file is not None:
            yield f"code.forges ({forge.host}).token_file", forge.token_file


def _secret_file(key: str, path: Path) -> list[Finding]:
    try:
        status = path.stat()
    except FileNotFoundError:
        if key == "tokens_file":  # an empty one
            return []
        return [
            error("tokens", f"{key}: there is no file {path}", "Create it, or correct the path")
        ]
    except OSError as exc:
        remedy = f"Let the broker's user see it: {as_root('chmod', 'o+x', path.parent)}"
        return [error("tokens", f"{key}: {path}: {exc.strerror}", remedy)]
    if not os.access(path, os.R_OK):
        remedy = f"Let the broker's user read it: {as_root('chown', os.geteuid(), path)}"
        return [error("tokens", f"{key}: {path} cannot be read", remedy)]
    if stat.S_IMODE(status.st_mode) & 0o007:
        message = f"{key}: every user of this machine can read or change {path}"
        change = command if status.st_uid == os.geteuid() else as_root
        return [warning("tokens", message, change("chmod", "o-rwx", path))]
    if status.st_uid not in (0, os.geteuid()):
        message = f"{key}: {path} belongs to user {status.st_uid}, who can change it"
        return [warning("tokens", message, as_root("chown", os.geteuid(), path))]
    return []


def certificates(patient: Patient) -> list[Finding]:
    """Whether the certificate fits its key, and is valid for a while."""
    tls = patient.settings.tls
    try:
        context = credentials.tls(tls)
    except ConfigError as exc:
        remedy = "Name a PEM certificate and its own key, which the broker's user can read"
        return [from_error("certificates", exc, remedy)]
    if context is None or tls.certificate is None:
        if not patient.settings.on_loopback:
            host = patient.settings.host
            message = f"the broker listens on {host} without TLS: tokens and code are sent in clear"
            remedy = "Set tls.certificate and tls.key, unless a reverse proxy adds TLS"
            return [warning("certificates", message, remedy)]
        return [ok("certificates", "none is needed on the loopback")]
    renew = "Renew it, and restart the broker, which reads it at its start"
    try:
        until = _valid_until(context, tls.certificate)
    except ssl.SSLCertVerificationError as exc:
        if exc.verify_code == _EXPIRED:
            return [error("certificates", f"{tls.certificate} has expired", renew)]
        if exc.verify_code == _NOT_YET_VALID:
            remedy = "Set the clock of this machine, or wait"
            return [error("certificates", f"{tls.certificate} is not valid yet", remedy)]
        message = f"{tls.certificate} cannot be verified: {exc.verify_message}"
        return [error("certificates", message, renew)]
    except ssl.SSLError as exc:
        return [error("certificates", f"{tls.certificate} cannot be used: {exc.reason}", renew)]
    days = int((until - time.time()) // 86_400)
    if until < time.time() + _EXPIRES_SOON_S:
        return [warning("certificates", f"{tls.certificate} expires in {days} days", renew)]
    return [ok("certificates", f"{tls.certificate} is valid for {days} days")]


def _valid_until(server: ssl.SSLContext, certificate: Path) -> float:
    """When the certificate expires, found by a handshake in memory. Raises SSLError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be one of an authority
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
            if not side.server_side:
                found: Any = side.getpeercert()
                return float(ssl.cert_time_to_seconds(found["notAfter"]))
    raise AssertionError("the client side ends first")
