"""The token file: the hashes of all tokens, and the tenant of each.

A token is `kb_ID_SECRET`. The file contains the id, the SHA-256 of the whole token, the tenant, and the
times of creation and expiry. The secret has 256 random bits, so it cannot be guessed and a plain hash is
enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json

TOKEN_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$"
TENANT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_TOKEN = re.compile(r"kb_([0-9a-f]{12})_[0-9a-f]{64}")


class TokenError(Exception):
    """The token file cannot be used, or the request is invalid; the message says what to do."""


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token without its secret. Times are in seconds since the epoch; None stands for never.

    Attributes:
        name: of the person or program that has it, for those who see what it did; empty if not given.
        operator: it may use the calls for operators.
    """

    id: str
    tenant: str
    sha256: str
    created_at: float
    expires_at: float | None = None
    name: str = ""
    operator: bool = False

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[TokenRecord] = []


class TokenFile:
    """Creates, lists, revokes and verifies tokens. A running broker sees changes at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._by_id: dict[str, TokenRecord] = {}

    def create(
        self,
        tenant: str,
        lifetime: float | None = None,
        *,
        name: str = "",
        operator: bool = False,
    ) -> str:
        """Create a token.

        Args:
            lifetime: seconds until it expires; None for never.
            name, operator: see `TokenRecord`.

        Returns:
            the token, which cannot be read again.

        Raises:
            TokenError
        """
        if not re.fullmatch(TENANT_NAME, tenant):
            raise TokenError(
                f"{tenant!r} is not a valid tenant name: use letters, digits, '_', '.' and '-', at most 64"
            )
        if name and not re.fullmatch(TOKEN_NAME, name):
            raise TokenError(
                f"{name!r} is not a valid name: use letters, digits, '_', '.', '@' and '-', at most 64"
            )
        token_id, now = secrets.token_hex(6), time.time()
        token = f"kb_{token_id}_{secrets.token_hex(32)}"
        expires_at = None if lifetime is None else now + lifetime
        with self._changing() as content:
            content.tokens.append(
                TokenRecord(token_id, tenant, _hash(token), now, expires_at, name, operator)
            )
        return token

    def list(self) -> list[TokenRecord]:
        """All tokens, the oldest first. Raises TokenError."""
        return self._read().tokens

    def revoke(self, token_id: str) -> None:
        """Revoke a token. Raises TokenError, also if there is no such token."""
        with self._changing() as content:
            kept = [record for record in content.tokens if record.id != token_id]
            if len(kept) == len(content.tokens):
                raise TokenError(f"there is no token {token_id}; `token list` shows their ids")
            content.tokens = kept

    def tenant_of(self, token: str) -> str | None:
        """The name of the tenant of a token; None if the token is unknown, expired or revoked.

        Raises:
            TokenError: the file cannot be read.
        """
        record = self.find(token)
        return None if record is None else record.tenant

    def find(self, token: str) -> TokenRecord | None:
        """The record of a token; None if the token is unknown, expired or revoked.

        Raises:
            TokenError: the file cannot be read.
        """
        record = self._record_of(token)
        return None if record is None or record.expired else record

    def has_expired(self, token: str) -> bool:
        """Whether a token was valid once, and is no more because of its age. Raises TokenError."""
        record = self._record_of(token)
        return record is not None and record.expired

    def _record_of(self, token: str) -> TokenRecord | None:
        if not (match := _TOKEN.fullmatch(token)):
            return None
        self._refresh()
        if (record := self._by_id.get(match[1])) is None:
            return None
        return record if hmac.compare_digest(record.sha256, _hash(token)) else None

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = self._path.stat()
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror}") from error
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self._by_id = {record.id: record for record in self._read().tokens}
            self._seen = seen

    def _read(self) -> _Content:
        try:
            return decode_json(self._path.read_bytes(), _Content)
        except FileNotFoundError:
            return _Content()
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise TokenError(f"{self._path} is not a token file: {error}") from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Content]:
        """The content of the file, for changes; written atomically if the block does not raise."""
        try:
            directory = self._path.parent
            lock = os.open(directory, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                content = self._read()
                yield content
                self._replace(msgspec.json.format(msgspec.json.encode(content)))
            finally:
                os.close(lock)
        except FileNotFoundError as error:
            raise TokenError(f"{self._path}: create its directory first: {directory}") from error
        except PermissionError as error:
            raise TokenError(f"{self._path}: only its owner and root may change it") from error
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror}") from error

    def _replace(self, content: bytes) -> None:
        """Replace the file atomically; its owner and mode stay."""
        handle, name = tempfile.mkstemp(dir=self._path.parent)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                if self._path.exists():
                    old = self._path.stat()
                    os.fchown(handle, old.st_uid, old.st_gid)
                    os.fchmod(handle, stat.S_IMODE(old.st_mode))
                file.write(content)
                file.flush()
                os.fsync(handle)
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
