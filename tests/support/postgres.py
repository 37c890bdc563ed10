"""A PostgreSQL server for tests, in a directory of its own, on a unix socket. It never runs as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.support.requires import require
from tests.support.waiting import DEADLINE_S

_USER = "postgres"


def _program(name: str) -> str | None:
    """The program of the newest version that Debian has installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: float(p.parts[4])
    )
    return str(found[-1]) if found else shutil.which(name)


class Server:
    """A running server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._count = 0
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(directory, _USER, _USER)
            self._account = {"user": _USER, "group": _USER, "extra_groups": []}
        initdb = _program("initdb")
        assert initdb is not None
        subprocess.run(
            [
                initdb,
                "-D",
                "data",
                "-U",
                _USER,
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ],
            cwd=directory,
            check=True,
            capture_output=True,
            **self._account,
        )
        self.start()

    def start(self) -> None:
        """Start it, again after `stop`, and wait until it answers."""
        program = _program("postgres")
        assert program is not None
        options = ("listen_addresses=", "fsync=off", "shared_buffers=16MB", "max_connections=60")
        arguments = [each for option in options for each in ("-c", option)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-D", "data", "-k", str(self.directory), *arguments],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                **self._account,
            )
        ready = _program("pg_isready")
        assert ready is not None
        command = f"until {ready} -q -U {_USER} -h {self.directory}; do sleep 0.05; done"
        subprocess.run(["sh", "-c", command], check=True, timeout=DEADLINE_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # it closes all connections
        self.process.wait(DEADLINE_S)

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        self._count += 1
        name = f"test{os.getpid()}_{self._count}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://{_USER}@/{name}?host={self.directory}"


class Relay:
    """A network between brokers and a server, which can go silent, as when all packets are dropped."""

    def __init__(self, server: Server) -> None:
        self._path = str(server.directory / ".s.PGSQL.5432")
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)

    def url(self, database: str) -> str:
        """The database of this URL, through the relay."""
        name = urlsplit(database).path.removeprefix("/")
        port = self._listener.getsockname()[1]
        return f"postgresql://{_USER}@127.0.0.1:{port}/{name}?sslmode=disable&gssencmode=disable"

    def silence(self) -> None:
        """Connections stay, and new ones are accepted, but nothing arrives."""
        self._passes.clear()

    def speak(self) -> None:
        """What was held back arrives, and what is sent from now on."""
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, work: Callable[..., None], *values: object) -> None:
        threading.Thread(target=work, args=values, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._path)
                self._sockets += [client, server]
                self._start(self._pass, client, server)
                self._start(self._pass, server, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def relay(server: Server) -> Iterator[Relay]:
    found = Relay(server)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """Run a server. Skips the test if PostgreSQL is not installed."""
    require("postgresql")
    directory = Path(tempfile.mkdtemp(prefix="kernelbroker-postgres-", dir="/var/tmp"))
    server = None
    try:
        server = Server(directory)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory)
