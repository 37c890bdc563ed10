"""Container engines of a test, which it can stop and restart: a dockerd, a Podman service.

They load the kernels' image from the engine that has it. This takes about 20 s, so each engine is started
once in a test run.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

DEADLINE_S = 120.0

_APART = (
    *("unshare", "--net", "--mount", "--propagation", "slave", "sh", "-c"),
    'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"',
    "-",
)
"""In a network namespace of its own, since a second dockerd would take the bridge from the first. And
crun refuses a machine with both versions of control groups; so it sees but the first."""

_WITHOUT_NPROC = """#!/bin/sh
# Podman raises this limit by itself, for which not every machine's root has the right.
for argument; do
  if [ "$before" = --bundle ]; then
    sed -i -E 's/\\{"type":"RLIMIT_NPROC"[^}]*\\},?//; s/,\\]/]/' "$argument/config.json"
  fi
  before=$argument
done
exec crun "$@"
"""


class OwnEngine:
    """An engine of a test. Call `start` and `stop` as often as needed, and `close` at the end.

    Attributes:
        host: its address, as docker clients write it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._socket = directory / "engine.sock"
        self.host = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def argv(self) -> list[str]:
        raise NotImplementedError

    def start(self, *options: str) -> None:
        """Start the engine, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_APART, *self.argv(), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + DEADLINE_S
        while self.cli("version").returncode != 0:
            problem = (self.directory / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, problem
            assert time.monotonic() < deadline, problem
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the engine as an administrator would; a dockerd without live-restore ends its containers."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE_S)
            self._process = None

    def close(self) -> None:
        self.stop()

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.host, *arguments], capture_output=True, text=True
        )

    def load(self, image: str) -> None:
        """Load an image from the engine that the other tests use."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            subprocess.run(
                ["docker", "--host", self.host, "load"],
                stdin=save.stdout,
                check=True,
                capture_output=True,
            )


class OwnDocker(OwnEngine):
    """A dockerd with runc, crun, and as runsc the script that a test writes to `gvisor`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gvisor = directory / "runsc"
        self.set_gvisor("exit 1")

    def set_gvisor(self, script: str) -> None:
        self.gvisor.write_text(f"#!/bin/sh\n{script}\n")
        self.gvisor.chmod(0o755)

    def argv(self) -> list[str]:
        where = self.directory
        return [
            *("dockerd", "--host", self.host, "--data-root", f"{where}/data"),
            *("--exec-root", f"{where}/exec", "--pidfile", f"{where}/pid"),
            *("--bridge", "none", "--iptables=false"),
            *("--add-runtime", f"crun={shutil.which('crun')}"),
            *("--add-runtime", f"runsc={self.gvisor}"),
        ]


class OwnPodman(OwnEngine):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._runtime = directory / "crun"
        self._runtime.write_text(_WITHOUT_NPROC)
        self._runtime.chmod(0o755)

    def argv(self) -> list[str]:
        return [*self._podman(), "system", "service", "--time=0", self.host]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()  # it would wait for clients that wait for events
        super().close()
        subprocess.run(["umount", f"{self.directory}/root/overlay"], capture_output=True)

    def _podman(self) -> list[str]:
        where = self.directory
        return [
            *("podman", "--root", f"{where}/root", "--runroot", f"{where}/runroot"),
            *("--tmpdir", f"{where}/tmp", "--runtime", str(self._runtime)),
            *("--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"),
        ]
