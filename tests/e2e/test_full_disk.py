"""A session that fills the disk of all: others go on, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker_server.workspaces.disk_room import RESERVE

from tests.e2e.support import BrokerProcess, call, until, whole_system
from tests.support.requires import requires
from tests.support.results import cause_of

pytestmark = [*whole_system, requires("root")]

DISK_MIB = 400
FILL = """
import os, time
open("begun", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
part = bytes(2**20)
with open("large", "ab", buffering=0) as file:
    try:
        while True:
            file.write(part)
    except OSError as error:
        print(error.strerror)
while True:
    pass
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kb-disk-") as directory:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", directory]
        subprocess.run(command, check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


@pytest.fixture(scope="module")
def broker(disk: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(disk, POOL__MIN_SIZE=1)
    try:
        yield broker.start()
        ids = broker.broker_ids()
        assert (broker.stop(), broker.remains(ids)) == (0, [])
        # Between two looks the disk may become full: what cannot be stored then waits for the reserve.
        errors = [line for line in broker.complaints() if "ERROR" in line]
        expected = (
            "reserve",
            "results are not stored: ",
            "it tries again",
            "could not be put away",
        )
        assert all(any(text in line for text in expected) for line in errors), "\n".join(errors)
    finally:
        broker.kill()


@pytest.mark.parametrize("seen", ["early", "late"])
async def test_others_go_on(broker: BrokerProcess, disk: Path, seen: str) -> None:
    """Launches, results, files and the store have room; who wrote is told; with room, all goes on.

    A broker that looks late finds the disk full to the last byte.
    """
    reserve = disk / "data" / RESERVE
    await until(reserve.exists)
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session("neighbour") as neighbour,
        client.session() as hog,
    ):
        await neighbour.run("x = 'kept'")
        filling = await hog.submit(FILL, timeout=60)
        (begun,) = await until(lambda: [*disk.rglob("begun")])
        if seen == "late":
            os.kill(broker.pid, signal.SIGSTOP)
        begun.with_name("go").touch()
        if seen == "late":
            try:
                await until(lambda: os.statvfs(disk).f_bavail == 0)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
        full = await filling.result()
        assert cause_of(full) == "quota_exceeded", full.error
        assert "disk is nearly full" in (full.error or ""), full.error
        # The neighbour has its variables, and can print and read; new sessions get sandboxes.
        assert (await neighbour.run("print(x)")).stdout == "kept\n"
        for number in range(3):
            async with client.session() as fresh:
                assert (await fresh.run(f"print({number})")).stdout == f"{number}\n"
        with pytest.raises(kernelbroker.TooLarge, match="disk is nearly full"):
            await neighbour.files.write("more", bytes(5 * 2**20))
        handle = await neighbour.submit("print('stored')")
        assert (await handle.result()).stdout == "stored\n"
        for name in ("large", "begun", "go"):
            await hog.files.delete(name)

        async def has_room() -> bool:
            write = "open('small', 'w').write('1')"
            return reserve.exists() and all(
                [(await session.run(write)).success for session in (neighbour, hog)]
            )

        await until(has_room)

    async def is_healthy() -> bool:
        return bool((await call(broker, "GET", "/health"))[1]["status"] == "ok")

    await until(is_healthy)
