"""The calls to a Kubernetes API that the backend `kubernetes` makes, with objects as plain JSON.

kubernetes_asyncio finds and renews the credentials, and sends the requests. Its models are not used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.exceptions import ApiException

_REQUEST_S = 15.0
_WATCH_S = 300
"""After which the API ends a watch, and it is opened again where it ended."""
_GONE_S = 0.3
_CONNECTIONS = 100
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Json: TypeAlias = dict[str, Any]


class KubernetesError(Exception):
    """The API could not be reached, or refused a request."""


class NotThere(KubernetesError):
    """There is no such object."""


class Gone(KubernetesError):
    """The watch has missed changes: list again."""


class Refused(KubernetesError):
    """The API understood the request and refused it, such as for a quota or missing rights."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError, ApiException) as error:
        raise KubernetesError(
            f"the API does not answer: {str(error) or type(error).__name__}"
        ) from error


def _own_namespace() -> str:
    """Return the namespace of the Pod in which the broker runs; empty if it runs in none."""
    with suppress(OSError):
        return _NAMESPACE.read_text().strip()
    return ""


class KubernetesApi:
    """The API server, for one namespace. Call `connect` first, and `close` at the end.

    Args:
        kubeconfig: the path of a kubeconfig; None for the service account of the broker's own Pod or, if it
            runs in none, for that of the environment (KUBECONFIG, ~/.kube/config).
        context: its context; None for the current one.
        namespace: None for that of the broker's own Pod or context, or `default`.

    Attributes:
        namespace: the namespace, after `connect`.
        address: the URL of the API, after `connect`.
    """

    def __init__(self, kubeconfig: Path | None, context: str | None, namespace: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self.namespace = namespace or ""
        self.address = ""
        self._client: ApiClient | None = None

    async def connect(self) -> str:
        """Find the credentials. Returns the version of the API server. Raises KubernetesError."""
        configuration = Configuration()
        try:
            if self._kubeconfig is None and (own_namespace := _own_namespace()):
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                self.namespace = self.namespace or own_namespace
            else:
                path = None if self._kubeconfig is None else str(self._kubeconfig)
                loader = await config.load_kube_config(
                    path, self._context, configuration, persist_config=False
                )
                own = dict((loader.current_context or {}).get("context", {}))
                self.namespace = self.namespace or str(own.get("namespace") or "default")
        except (config.ConfigException, OSError, ValueError, TypeError) as error:
            raise KubernetesError(f"no credentials were found: {error}") from error
        configuration.connection_pool_maxsize = _CONNECTIONS
        self.address = str(configuration.host)
        self._client = ApiClient(configuration)
        return str((await self.call("GET", "/version")).get("gitVersion", ""))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send one request and return the answer. Raises KubernetesError."""
        with _translated():
            async with asyncio.timeout(_REQUEST_S):
                async with await self._send(method, path, body, query, content_type) as response:
                    text = await response.read()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text[:300].decode(errors="replace")}
        _check(response.status, answer)
        return dict(answer)

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of an object of the namespace, or of all of a kind."""
        own = f"/api/v1/namespaces/{self.namespace}/{kind}"
        return f"{own}/{name}" if name else own

    async def create(self, kind: str, manifest: Mapping[str, Any]) -> Json:
        """Raises KubernetesError, such as Refused."""
        return await self.call("POST", self.path(kind), manifest)

    async def get(self, kind: str, name: str) -> Json:
        """Raises KubernetesError, such as NotThere."""
        return await self.call("GET", self.path(kind, name))

    async def delete(self, kind: str, name: str, *, uid: str = "", at_once: bool = False) -> None:
        """Delete an object, if there is one. Raises KubernetesError.

        Args:
            uid: of the object; another one with this name stays.
            at_once: do not wait for the node, which may be lost.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if at_once:
            options["gracePeriodSeconds"] = 0
        with suppress(NotThere):
            await self.call("DELETE", self.path(kind, name), options)

    async def delete_and_wait(self, kind: str, name: str, timeout: float = 30.0) -> None:
        """Delete an object, and wait until it is gone. Raises KubernetesError.

        After half of the timeout nobody waits for the node any more.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while (passed := loop.time() - began) < timeout:
                await self.delete(kind, name, at_once=passed > timeout / 2)
                await self.get(kind, name)
                await asyncio.sleep(_GONE_S)
        except NotThere:
            return
        raise KubernetesError(f"{name} is still there {timeout:g} s after its deletion")

    async def list(self, kind: str, labels: str) -> tuple[list[Json], str]:
        """Return the objects with the labels, and the version from which `watch` goes on."""
        found = await self.call("GET", self.path(kind), query={"labelSelector": labels})
        return list(found.get("items", [])), str(found["metadata"]["resourceVersion"])

    async def watch(
        self, kind: str, labels: str, version: str
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield changes, (ADDED, MODIFIED, DELETED or BOOKMARK, object), until the API ends the watch.

        Raises:
            Gone: changes were missed.
            KubernetesError
        """
        query = {
            "labelSelector": labels,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        with _translated():
            timeout = aiohttp.ClientTimeout(sock_connect=_REQUEST_S, sock_read=_WATCH_S + 30)
            response = await self._send("GET", self.path(kind), None, query, "", timeout)
            async with response:
                if response.status != 200:
                    _check(response.status, json.loads(await response.read()))
                async for line in response.content:
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        _check(int(change["object"].get("code", 500)), change["object"])
                    yield change["type"], change["object"]

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        if self._client is None:
            raise KubernetesError("the backend is not running")
        headers = {"Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        sent: aiohttp.ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        return sent


def _check(status: int, answer: Mapping[str, Any]) -> None:
    """Raise what an answer of the API means."""
    if status < 400:
        return
    message = str(answer.get("message") or f"status {status}")
    if status == 404:
        raise NotThere(message)
    if status == 410:
        raise Gone(message)
    if status in (400, 401, 403, 409, 413, 422):
        raise Refused(message)
    raise KubernetesError(message)
