"""A namespace of the cluster with the rights that docs/kubernetes.md names, behind a door that can shut."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.backends.probes import kubectl
from tests.support.documentation import blocks_of
from tests.support.requires import KUBECONFIG


class Door:
    """Passes TCP connections on to an address, while it is open."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_open = True
        self._passing: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def shut(self) -> None:
        """Break all connections, and accept none."""
        self._is_open = False
        for each in list(self._passing):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        self.shut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._is_open:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._passing |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        self._passing.discard(source)
        if target not in self._passing:  # both directions have ended
            source.close()
            target.close()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, the kubeconfig of its service account, and the door to the API."""

    name: str
    kubeconfig: Path
    door: Door

    def pods(self, *words: str) -> list[str]:
        """The output of `kubectl get pods`, by words."""
        return kubectl("-n", self.name, "get", "pods", *words).split()


def documented_rights() -> str:
    """The manifest of docs/kubernetes.md."""
    found = [each for each in blocks_of("kubernetes.md") if "kind: RoleBinding" in each.text]
    return found[0].text


def apply(manifest: str, namespace: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(manifest)
        file.flush()
        kubectl("-n", namespace, "apply", "-f", file.name)


@contextlib.contextmanager
def new_namespace() -> Iterator[Namespace]:
    """A new namespace, with the documented rights."""
    assert KUBECONFIG is not None
    name = f"kernelbroker-test-{secrets.token_hex(3)}"
    config = yaml.safe_load(KUBECONFIG.read_text())
    cluster = config["clusters"][0]["cluster"]
    address = urlsplit(cluster["server"])
    door = Door(str(address.hostname), address.port or 443)
    kubectl("create", "namespace", name)
    try:
        apply(documented_rights(), name)
        token = kubectl("-n", name, "create", "token", "kernelbroker").strip()
        cluster["server"] = f"https://127.0.0.1:{door.port}"
        cluster["tls-server-name"] = str(address.hostname)
        config["users"] = [{"name": "broker", "user": {"token": token}}]
        config["contexts"][0]["context"] |= {"user": "broker", "namespace": name}
        with tempfile.TemporaryDirectory(prefix="kb-") as directory:
            path = Path(directory, "kubeconfig")
            path.write_text(yaml.safe_dump(config))
            yield Namespace(name, path, door)
    finally:
        door.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            kubectl("delete", "namespace", name, "--wait=false")
