"""A cell sees nothing of the host: some checks through the whole system."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import kernelbroker

from tests.e2e.support import HOST_SECRET, ROOT, BrokerProcess, whole_system

pytestmark = whole_system

OURS = {f"KERNELBROKER_{name}" for name in ("CPUS", "MEMORY", "WORKSPACE")}


async def test_the_brokers_environment_is_hidden(session: kernelbroker.Session) -> None:
    """No environment variable of the broker is visible in a cell."""
    result = await session.run(
        "import glob, os\n"
        "seen = dict(os.environ)\n"
        "for name in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try:\n"
        "        pairs = open(name).read().split('\\0')\n"
        "    except OSError:\n"
        "        continue\n"
        "    seen.update(pair.split('=', 1) for pair in pairs if '=' in pair)",
        result_var="seen",
    )
    seen = result.return_value
    assert {name for name in seen if name.startswith("KERNELBROKER")} <= OURS
    assert seen["HOME"] != os.environ.get("HOME")
    assert HOST_SECRET not in str(seen)
    assert not [value for value in seen.values() if str(ROOT) in value or ".venv" in value]


async def test_a_cell_has_no_privileges(session: kernelbroker.Session) -> None:
    """A cell is uid 1000, without groups and without capabilities."""
    result = await session.run(
        "import os\n"
        "fields = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines())\n"
        "me = [os.getuid(), os.getgid(), *(int(fields[f], 16) for f in fields if f.startswith('Cap')),\n"
        "      int(fields['NoNewPrivs'])]",
        result_var="me",
    )
    assert result.return_value == [1000, 1000, 0, 0, 0, 0, 0, 1]


async def test_the_hosts_files_are_hidden(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """Neither the host's homes and secrets nor another session's workspace can be found."""
    needle = f"needle-{secrets.token_hex(8)}"
    paths = [
        Path(__file__),
        broker.data_dir,
        broker.run_dir,
        broker.runtime_file,
        *Path.home().glob("*rc"),
    ]
    hidden = [*map(str, paths), "/etc/shadow", "/var/lib/dpkg", "/run/docker.sock", "/root/.ssh"]
    async with client.session() as one, client.session() as other:
        await one.run(f"_ = open('/data/{needle}', 'w').write('secret')")
        result = await other.run(
            "import os\n"
            "found = []\n"
            "for top, folders, files in os.walk('/'):\n"
            "    if top == '/':\n        folders[:] = set(folders) - {'proc', 'sys', 'usr'}\n"
            f"    found += [os.path.join(top, f) for f in folders + files if {needle!r} in f]\n"
            f"there = [path for path in {hidden!r} if os.path.lexists(path)]",
            result_var="there",
            timeout=60,
        )
        assert result.success, result.error
        assert result.return_value == []
        assert (await other.run("found", result_var="found")).return_value == []
        await other.run("open('/data/shared_name', 'w').close(); open('/tmp/x', 'w').close()")
        result = await one.run("import os; print(os.listdir('/data'), os.path.exists('/tmp/x'))")
        assert result.stdout == f"['{needle}'] False\n"


async def test_a_cell_has_no_network(session: kernelbroker.Session, broker: BrokerProcess) -> None:
    """A cell reaches neither the Internet nor the host nor the broker."""
    port = broker.url.rpartition(":")[2]
    result = await session.run(
        "import errno, socket\n"
        "def reached(family, address):\n"
        "    with socket.socket(family) as s:\n"
        "        s.settimeout(2)\n"
        "        try:\n"
        "            s.connect(address)\n"
        "        except OSError as error:\n"
        "            return errno.errorcode.get(error.errno, str(error))\n"
        "        return 'reached'\n"
        f"answers = [reached(socket.AF_INET, ('127.0.0.1', {port})),\n"
        "           reached(socket.AF_INET, ('1.1.1.1', 443)),\n"
        "           reached(socket.AF_INET, ('169.254.169.254', 80))]\n"
        "names = [name for _, name in socket.if_nameindex()]",
        result_var="answers",
    )
    assert result.success, result.error
    assert "reached" not in result.return_value
    assert (await session.run("1", result_var="names")).return_value in (["lo"], [])


async def test_only_own_processes_are_visible(session: kernelbroker.Session) -> None:
    """A cell sees the processes of its own sandbox, and no others."""
    result = await session.run(
        "import os\npids = [int(p) for p in os.listdir('/proc') if p.isdigit()]", result_var="pids"
    )
    assert os.getpid() > 100
    assert len(result.return_value) < 10
