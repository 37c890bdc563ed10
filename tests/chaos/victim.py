"""A broker in a process of its own, and what can happen to it and to its sandboxes."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import struct
from pathlib import Path

from kernelbroker_server.backends import procfs

from tests.backends.probes import containers_of
from tests.e2e.support import BrokerProcess
from tests.support.engines import OwnEngine
from tests.support.requires import engine
from tests.support.waiting import DEADLINE_S

TOKEN = "chaos"
_RETENTION_S = 30 * 86400
"""Longer than the clock is moved."""
_STARTUP = """
import asyncio, mmap, signal, struct, sys, time

with open({path!r}, "rb") as file:
    ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real = time.time
time.time = lambda: real() + struct.unpack_from("d", ahead)[0]

def tell(*_):
    for task in asyncio.all_tasks():
        waits, found = task.get_coro(), []
        while waits is not None:
            frame = getattr(waits, "cr_frame", None) or getattr(waits, "ag_frame", None)
            if frame is not None:
                found.append(f"{{frame.f_code.co_qualname}}:{{frame.f_lineno}}")
            waits = getattr(waits, "cr_await", None) or getattr(waits, "ag_await", None)
        print("TASK", task.get_name(), " > ".join(found), file=sys.stderr, flush=True)

signal.signal(signal.SIGUSR1, tell)
"""


class Victim(BrokerProcess):
    """A broker that is killed and started again, in one directory.

    Its wall clock is read through a file, so that it can jump. On SIGUSR1 it logs what each task waits for.

    Args:
        engine: the container engine, if it is one that may be stopped.
        settings: further ones, by the names of their environment variables.
    """

    def __init__(
        self, directory: Path, kind: str, engine: OwnEngine | None = None, **settings: object
    ) -> None:
        self._ahead = directory / "ahead"
        self._ahead.write_bytes(struct.pack("d", 0.0))
        code = directory / "code"
        code.mkdir()
        (code / "sitecustomize.py").write_text(_STARTUP.format(path=str(self._ahead)))
        self.kind = kind
        self.engine = engine
        self._host = None if engine is None else engine.host
        own: dict[str, object] = {
            "SHUTDOWN": "adopt",
            "TOKEN": TOKEN,
            "BACKEND": kind,
            "POOL__MIN_SIZE": 2,
            "POOL__MAX_SIZE": 8,
            "POOL__ACQUIRE_TIMEOUT": 60,
            "SESSIONS__RESULT_RETENTION": _RETENTION_S,
        }
        if engine is not None:
            own["DOCKER__HOST"] = engine.host
        super().__init__(directory, ["env", f"PYTHONPATH={code}"], **(own | settings))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def take_over(self) -> None:
        """Start a broker that takes over from the one that runs, and wait for the end of that one."""
        earlier = self._process
        assert earlier is not None
        try:
            self.start("--take-over")
        finally:
            if self._process is not earlier:
                earlier.wait(DEADLINE_S)

    def jump(self, seconds: float) -> None:
        """Set the broker's wall clock forward or back."""
        with self._ahead.open("r+b") as file:
            (ahead,) = struct.unpack("d", file.read(8))
            file.seek(0)
            file.write(struct.pack("d", ahead + seconds))

    def fill_disk(self) -> None:
        """No file of the broker can grow, as on a full disk."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (1, hard))

    def empty_disk(self) -> None:
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard, hard))

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill_process(self, rng: random.Random) -> bool:
        """Kill a process in a sandbox: a gateway, a kernel, or their first process."""
        pids = sorted(self._in_containers() if self.kind == "docker" else self.family())
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(pids), signal.SIGKILL)
        return True

    def kill_container(self, rng: random.Random) -> bool:
        names = sorted(containers_of(self.data_dir, self._host))
        if not names:
            return False
        with (
            engine(self._host) as api,
            contextlib.suppress(Exception),
        ):  # it may have ended by itself
            api.kill(rng.choice(names))
        return True

    def restart_engine(self) -> None:
        """End all containers, and the broker's connections to the engine."""
        assert self.engine is not None
        self.engine.stop()
        self.engine.start()

    @classmethod
    def cluster(cls, directory: Path, database: str, number: int) -> list[Victim]:
        """So many brokers of one machine, which share the database and their sandboxes' directories."""
        found = []
        for place in range(number):
            own = directory / f"broker{place}"
            own.mkdir()
            shared = {
                "STORE": database,
                "CLUSTER__SECRET": "the-secret-of-all-brokers",
                "CLUSTER__LEASE": 2,
                "STATE_DIR": own / "state",
                "LOCAL__DATA_DIR": directory / "data",
                "LOCAL__RUN_DIR": directory / "run",
            }
            broker = cls(own, "local", None, **shared)
            broker.data_dir, broker.run_dir = directory / "data", directory / "run"
            found.append(broker)
        return found

    def _in_containers(self) -> set[int]:
        found: set[int] = set()
        with engine(self._host) as api:
            for name in containers_of(self.data_dir, self._host):
                with contextlib.suppress(Exception):  # it may have ended by itself
                    pid = api.inspect_container(name)["State"]["Pid"]
                    if pid:
                        found |= procfs.family(procfs.processes(), pid)
        return found
