"""A scripted forge: real repositories behind `git http-backend`, and the APIs for pull requests."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "token-of-the-forge"
_BACKEND = "/usr/lib/git-core/git-http-backend"


@dataclass
class ScriptedForge:
    """
    Attributes:
        root: has the bare repositories, such as `acme/shop.git`.
        pulls: what was sent to open pull requests, with the path and the credential.
        requests: the method, path and credential of each request.
        refuse: a status and a message for the next pull request.
    """

    root: Path
    port: int = 0
    pulls: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    refuse: tuple[int, dict[str, Any]] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make(self, name: str, source: Path) -> Path:
        """Make a repository with the files of a directory, on the branch `main`."""
        bare = self.root / f"{name}.git"
        git(self.root, "init", "--quiet", "--bare", "-b", "main", str(bare))
        git(bare, "config", "http.receivepack", "true")
        git(source, "init", "--quiet", "-b", "main")
        git(source, "add", "-A")
        git(source, "commit", "--quiet", "-m", "first")
        git(source, "push", "--quiet", str(bare), "main")
        return bare


def git(directory: Path, *argv: str) -> str:
    """Run git as a user who has no configuration."""
    who = {
        f"GIT_{role}_{key}": "t@t" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **who}
    options = ["-c", "safe.directory=*", "-C", str(directory)]
    done = subprocess.run(
        ["git", *options, *argv], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@contextmanager
def scripted_forge(root: Path) -> Iterator[ScriptedForge]:
    """Serve a forge on the loopback until the block ends."""
    forge = ScriptedForge(root)
    server = _Server(("127.0.0.1", 0), forge)
    forge.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], forge: ScriptedForge) -> None:
        self.forge = forge
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def answer(self) -> None:
        body = self._body()
        forge, parts = self.server.forge, urlsplit(self.path)
        credential = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
        forge.requests.append((self.command, self.path, credential))
        if parts.path.startswith("/api/"):
            self._api(parts.path, body, credential)
        elif not credential.startswith("Basic "):
            self._json(401, {"message": "who are you?"})
        elif base64.b64decode(credential[6:]).decode().partition(":")[2] != TOKEN:
            self._json(403, {"message": "wrong token"})
        else:
            self._git(parts.path, parts.query, body)

    do_GET = do_POST = answer  # noqa: N815 - the names that http.server wants

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _api(self, path: str, body: bytes, credential: str) -> None:
        """`/api/v3` is GitHub's, `/api/v1` Gitea's, `/api/v4` GitLab's."""
        forge = self.server.forge
        _, _, version, _, *rest = unquote(path).split("/")
        wanted = {"v3": f"Bearer {TOKEN}", "v1": f"token {TOKEN}", "v4": TOKEN}[version]
        if credential != wanted:
            self._json(401, {"message": f"Bad credentials {credential}"})
        elif self.command == "GET":
            self._json(200, {"name": "/".join(rest), "default_branch": "main"})
        elif forge.refuse is not None:
            status, told = forge.refuse
            forge.refuse = None
            self._json(status, told)
        else:
            sent = json.loads(body)
            forge.pulls.append({"version": version, "path": unquote(path), **sent})
            number = len(forge.pulls)
            page = f"https://forge.example/{'/'.join(rest[:2])}/{number}"
            told = {"iid": number, "web_url": page}
            if version != "v4":
                told = {"number": number, "html_url": page}
            self._json(201, told)

    def _json(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
        self.wfile.write(data)

    def _git(self, path: str, query: str, body: bytes) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.forge.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "broker",
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run([_BACKEND], input=body, env=environ, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in {**fields, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass
