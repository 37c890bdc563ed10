"""A server of object storage with the protocol of S3: SeaweedFS, which `get_seaweedfs` installs."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import obstore
from kernelbroker_server.workspaces.bucket import BucketOptions
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.support.requires import SEAWEEDFS, require

_START_S = 150.0
_SHELL_S = 15.0
"""A command of `weed shell` that does not find its server hangs."""


class S3Server:
    """The server with one bucket, in a directory that stays when it is stopped."""

    def __init__(self, directory: Path) -> None:
        require("seaweedfs")
        self._directory = directory
        self._ports = _free_ports(4)
        self.endpoint = f"http://127.0.0.1:{self._ports[3]}"
        self.key, self.secret = "the-key", secrets.token_hex(16)
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {
            "name": "broker",
            "credentials": [{"accessKey": self.key, "secretKey": self.secret}],
            "actions": actions,
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (directory / "data").mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_bucket = False

    def start(self) -> None:
        """Start it, and wait until it stores something."""
        master, volume, filer, s3 = map(str, self._ports)
        argv = [str(SEAWEEDFS / "weed"), "-logtostderr=true", "server", "-ip=127.0.0.1"]
        argv += ["-ip.bind=127.0.0.1", f"-dir={self._directory / 'data'}", "-volume.max=20"]
        argv += ["-master.volumeSizeLimitMB=64", f"-master.port={master}", f"-volume.port={volume}"]
        argv += ["-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}"]
        argv += [f"-s3.config={self._directory / 's3.json'}", "-s3.port.iceberg=0"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._directory)
        end = time.monotonic() + _START_S
        while True:
            try:
                if not self._has_bucket:  # it stays
                    self._make_bucket()
                obstore.put(self.store("probe"), "probe", b"x")
                self._has_bucket = True
                return
            except (BaseError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                if time.monotonic() > end or self._process.poll() is not None:
                    self.stop()
                    text = (self._directory / "log").read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"SeaweedFS does not start: {error}\n{text}") from error
                time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # a polite end takes 20 s, and a crash is the harder test
            self._process.wait()
            self._process = None

    def options(self, prefix: str, **changed: Any) -> BucketOptions:
        options = {
            "bucket": "workspaces",
            "prefix": prefix,
            "endpoint": self.endpoint,
            "access_key": self.key,
            "secret_key": self.secret,
            "timeout": 10.0,
            **changed,
        }
        return BucketOptions(**options)

    def store(self, prefix: str) -> S3Store:
        return S3Store(
            "workspaces",
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id=self.key,
            secret_access_key=self.secret,
            client_options={"allow_http": True, "timeout": "5 seconds"},
            retry_config={"max_retries": 0},
        )

    def _make_bucket(self) -> None:
        command = "s3.bucket.create -name workspaces\n"
        argv = [str(SEAWEEDFS / "weed"), "shell", f"-master=127.0.0.1:{self._ports[0]}"]
        argv += [f"-filer=127.0.0.1:{self._ports[2]}"]
        subprocess.run(
            argv, input=command.encode(), capture_output=True, timeout=_SHELL_S, check=False
        )


def _free_ports(count: int) -> list[int]:
    """Ports whose number plus 10,000, which SeaweedFS uses for gRPC, is free as well.

    Neither is one of those that the system gives to connections (from 32,768 on).
    """
    found: list[int] = []
    while len(found) < count:
        port = secrets.randbelow(10_000) + 12_000
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
