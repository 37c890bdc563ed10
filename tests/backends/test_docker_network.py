"""The docker backend with gateways over TCP, forced with runc."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_transport import Transport
from kernelbroker_server.backends.internal_network import firewall_rule, network_options
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.kernels.channel import ChannelClosed
from kernelbroker_server.kernels.endpoint import TcpEndpoint
from kernelbroker_server.kernels.gateway import GatewayConnection

from tests.support.requires import engine, requires

from .brokers import dead_broker
from .probes import DEADLINE_S, ask, container_of, end, networks_of, running_docker

pytestmark = [pytest.mark.sandbox, requires("docker")]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[DockerBackend]:
    async with running_docker(transport=Transport.TCP) as backend:
        yield backend


def test_the_network_is_internal() -> None:
    """The network is internal, and its containers cannot communicate."""
    options = network_options("kb-1", {"kernelbroker.broker": "1"})
    assert options["internal"] is True
    assert options["options"]["com.docker.network.bridge.enable_icc"] == "false"
    assert firewall_rule("-I", "kb-1")[:7] == ["--wait", "5", "-I", "INPUT", "-i", "kb-1", "-m"]


REACH = """
import threading
found = {}
def reach(address):
    found[address] = attempt(socket.create_connection, address, 2).startswith("done")
threads = [threading.Thread(target=reach, args=[address]) for address in addresses]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = [found[address] for address in addresses]"""


@requires("root")
async def test_no_other_sandbox_or_host_is_reached(backend: DockerBackend) -> None:
    """A sandbox reaches neither another one nor the host, by any address."""
    one, two = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
    assert isinstance(one.endpoint, TcpEndpoint)
    assert isinstance(two.endpoint, TcpEndpoint)
    assert backend.describe()["host_network"] == "out of reach"
    with engine() as api:
        (name,) = networks_of(two.workspace.parents[3])
        gateway = api.inspect_network(name)["IPAM"]["Config"][0]["Gateway"]
    with socket.create_server(("0.0.0.0", 0)) as service:
        port = service.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: tells which address the host goes by
            other = probe.getsockname()[0]
        socket.create_connection((gateway, port), DEADLINE_S).close()  # the host itself gets there
        addresses = [(two.endpoint.host, two.endpoint.port), (gateway, port), (other, port)]
        assert await ask(one, REACH, addresses=addresses) == [False] * 3
    assert await ask(two, "result = 1") == 1
    source = (
        "result = open('/proc/net/if_inet6').read() if os.path.exists('/proc/net/if_inet6') else ''"
    )
    assert "eth0" not in await ask(one, source)


async def test_the_gateway_needs_its_token() -> None:
    """The gateway refuses requests without its token, and the kernel does not inherit it."""
    async with running_docker(transport=Transport.TCP, command=GATEWAY_COMMAND) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        assert isinstance(sandbox.endpoint, TcpEndpoint)
        wrong = TcpEndpoint(sandbox.endpoint.host, sandbox.endpoint.port, "wrong")
        refused = GatewayConnection(wrong)
        with pytest.raises(ChannelClosed, match=r"40[13]"):
            await refused.start_kernel(DEADLINE_S)
        await refused.close()
        gateway = GatewayConnection(sandbox.endpoint)
        await gateway.start_kernel(DEADLINE_S)
        name = container_of(sandbox)
        with engine() as api:
            find = (
                "import glob; print([b'KG_AUTH_TOKEN' in open(p[:-7] + 'environ', 'rb').read() "
                "for p in glob.glob('/proc/[0-9]*/cmdline') "
                "if b'kernelbroker_kernel.kernel\\0' in open(p, 'rb').read()])"
            )
            command = api.exec_create(name, ["env", "-u", "KG_AUTH_TOKEN", "python", "-c", find])
            assert api.exec_start(command["Id"]).strip() == b"[False]"
        await gateway.close()


@pytest.mark.long
async def test_a_gateway_without_a_broker_ends() -> None:
    """A gateway without an open channel ends, with the reason."""
    command = (*GATEWAY_COMMAND, "--alone", "15")
    async with running_docker(transport=Transport.TCP, command=command) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        gateway = GatewayConnection(sandbox.endpoint)
        await gateway.start_kernel(DEADLINE_S)
        await gateway.close()
        await asyncio.wait([sandbox.ended], timeout=60)
        ended = await end(sandbox)
        assert ended.detail == "the gateway failed: no channel was open for 15 s"
        assert sandbox.exit_status == EXIT_GATEWAY_FAILED


async def test_networks_are_reaped() -> None:
    """The next broker removes the network and the firewall rule of a killed one."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        await dead_broker("docker-tcp", data, run)
        (network,) = networks_of(data)
        async with running_docker(data_dir=data, run_dir=run):
            assert network not in networks_of(data)
        if os.geteuid() == 0:
            argv = ["iptables", "-S", "INPUT"]
            rules = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
            assert network.removeprefix("kernelbroker-") not in rules.stdout
