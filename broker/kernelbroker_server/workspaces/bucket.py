"""The objects of a bucket of S3, or of a server that is compatible with it.

The client is obstore: one wheel around Rust's `object_store`, asynchronous and typed, with its own
retries. An object is at most a piece of a file, so none needs an upload in parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta

import obstore
from kernelbroker.protocol.errors import Unavailable
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

_DELETED_AT_ONCE = 1000
RETRIES = 5


class Changed(Exception):
    """An object is not what it was when it was read: somebody else has written it."""


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """Where the bucket is, and how it is used.

    Attributes:
        endpoint: the URL of the server; None for that of AWS.
        access_key, secret_key: None for those of the environment, or of the machine's role.
        conditional_writes: the server supports If-Match and If-None-Match. Without, two brokers that
            claim a workspace in the same moment may both get it.
        timeout: seconds of a request, and of all its repetitions.
        requests: how many run at the same time.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    virtual_host: bool = False
    conditional_writes: bool = True
    timeout: float = 30.0
    requests: int = 16


class Bucket:
    """All methods raise Unavailable if the server does not answer, or refuses."""

    def __init__(self, options: BucketOptions) -> None:
        self._options = options
        self._turns = asyncio.Semaphore(options.requests)
        span = timedelta(seconds=options.timeout)
        credentials = {
            name: value
            for name, value in (
                ("access_key_id", options.access_key),
                ("secret_access_key", options.secret_key),
                ("endpoint", options.endpoint),
            )
            if value is not None
        }
        self._store = S3Store(
            options.bucket,
            prefix=options.prefix.strip("/") or None,
            region=options.region,
            virtual_hosted_style_request=options.virtual_host,
            client_options={
                "allow_http": (options.endpoint or "").startswith("http://"),
                "timeout": span,
                "connect_timeout": min(span, timedelta(seconds=5)),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": span},
            **credentials,  # type: ignore[arg-type]
        )

    async def get(self, key: str) -> tuple[bytes, str] | None:
        """The content and the version of an object; None if there is none."""
        try:
            async with self._turn():
                found = await obstore.get_async(self._store, key)
                return bytes(await found.bytes_async()), found.meta["e_tag"] or ""
        except FileNotFoundError:
            return None

    async def put(self, key: str, data: bytes) -> None:
        """Write an object whose key says what it has, so that it does not matter who wrote it."""
        async with self._turn():
            await obstore.put_async(self._store, key, data, use_multipart=False)

    async def replace(self, key: str, data: bytes, version: str | None) -> str:
        """Write an object if it is as it was read, and return its new version.

        Args:
            version: of the object that is replaced; None if there was none.

        Raises:
            Changed
        """
        if not self._options.conditional_writes:
            found = await self.get(key)
            if (None if found is None else found[1]) != version:
                raise Changed(key)
        try:
            async with self._turn():
                if not self._options.conditional_writes:
                    done = await obstore.put_async(self._store, key, data, use_multipart=False)
                elif version is None:
                    done = await obstore.put_async(self._store, key, data, mode="create")
                else:
                    done = await obstore.put_async(self._store, key, data, mode={"e_tag": version})
        except (AlreadyExistsError, PreconditionError) as exc:
            raise Changed(key) from exc
        return done["e_tag"] or ""

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; it does not matter if they are missing."""
        left = list(keys)
        while left:
            some, left = left[:_DELETED_AT_ONCE], left[_DELETED_AT_ONCE:]
            async with self._turn():
                with contextlib.suppress(FileNotFoundError):
                    await obstore.delete_async(self._store, some)

    async def keys(self, prefix: str) -> list[str]:
        """The keys of all objects below a prefix that ends with a slash."""
        async with self._turn():
            found = await obstore.list(self._store, prefix).collect_async()
        return [each["path"] for each in found]

    async def folders(self, prefix: str) -> list[str]:
        """The prefixes directly below a prefix."""
        async with self._turn():
            found = await obstore.list_with_delimiter_async(self._store, prefix)
        return sorted(found["common_prefixes"])

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a place among the requests, and translate errors."""
        try:
            async with self._turns:
                yield
        except (FileNotFoundError, AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, ValueError, OSError) as exc:
            reason = (
                str(exc).strip().splitlines()[0][:300] if str(exc).strip() else type(exc).__name__
            )
            raise Unavailable(
                f"the store of workspaces does not answer: {reason}", retry_after=10
            ) from exc
