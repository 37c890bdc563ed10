"""Attempts on the network: the broker, other sandboxes, the metadata service, and other hosts."""

from __future__ import annotations

from . import Attempt

_NETLINK = """
def netlink(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(3)
        link.send(struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
        code = struct.unpack_from("=i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, "")
"""

ATTEMPTS = [
    Attempt("The network", name, code, *refused)
    for name, code, *refused in [
        (
            "an interface to somewhere",
            "verdict = found(name for _, name in socket.if_nameindex() if name != 'lo')",
            "nothing",
        ),
        (
            "the internet",
            "verdict = [attempt(connect, (host, 80)) for host in ('1.1.1.1', '10.0.0.1', '192.168.0.1')]",
            "ENETUNREACH",
        ),
        (
            "the internet by IPv6",
            "verdict = attempt(connect, ('2606:4700:4700::1111', 53), socket.AF_INET6)",
            "ENETUNREACH EADDRNOTAVAIL EAFNOSUPPORT",
        ),
        (
            "datagrams",
            "verdict = attempt(connect, ('8.8.8.8', 53), socket.AF_INET, socket.SOCK_DGRAM)",
            "ENETUNREACH",
        ),
        (
            "groups and broadcasts",
            """
def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.sendto(b"x", (address, 9))
verdict = [attempt(send, "224.0.0.1"), attempt(send, "255.255.255.255")]""",
            "ENETUNREACH",
        ),
        (
            "the metadata service",
            "verdict = attempt(connect, ('169.254.169.254', 80))",
            "ENETUNREACH",
        ),
        ("names", "verdict = attempt(socket.getaddrinfo, 'example.org', 80)", "EAI"),
        (
            "the broker's port on the loopback",
            "verdict = attempt(connect, ('127.0.0.1', facts['broker_port']))",
            "ECONNREFUSED",
        ),
        (
            "the broker's port on the host's addresses",
            "verdict = [attempt(connect, (a, facts['broker_port'])) for a in facts['host_addresses']]",
            "ENETUNREACH",
        ),
        (
            "another sandbox's port",
            "verdict = attempt(connect, ('127.0.0.1', facts['neighbour_port']))",
            "ECONNREFUSED",
        ),
        (
            "the host's abstract sockets",
            "verdict = attempt(connect, chr(0) + facts['host_socket'], socket.AF_UNIX)",
            "ECONNREFUSED",
        ),
        (
            "another sandbox's abstract sockets",
            "verdict = attempt(connect, chr(0) + facts['needle'], socket.AF_UNIX)",
            "ECONNREFUSED",
        ),
        (
            "to see the host's sockets",
            """
verdict = found(n for n in (facts["host_socket"], facts["needle"], "containerd", "docker.sock")
             if n in open("/proc/net/unix").read())""",
            "nothing",
        ),
        (
            "raw sockets",
            """
verdict = [attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, number) for number in (1, 6, 255)]""",
            "EPERM",
        ),
        ("packet sockets", "verdict = attempt(socket.socket, 17, socket.SOCK_RAW, 3)", "EPERM"),
        (
            "a new interface",
            _NETLINK
            + """
kind = struct.pack("=HHHH6s2x", 20, 18 | 0x8000, 10, 1, b"dummy\\0")
dummy = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + kind
verdict = attempt(netlink, 16, dummy)""",
            "EPERM",
        ),
        (
            "an interface renumbered",
            """
def renumber():
    with socket.socket() as any_socket:
        request = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, socket.inet_aton("10.0.0.2"))
        fcntl.ioctl(any_socket, 0x8916, request)
verdict = attempt(renumber)""",
            "EPERM",
        ),
        (
            "the firewall",
            """
def rules():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 255) as raw:
        raw.setsockopt(0, 64, b"x" * 84)
verdict = attempt(rules)""",
            "EPERM",
        ),
        ("a tunnel", "verdict = attempt(os.open, '/dev/net/tun', os.O_RDWR)", "ENOENT"),
    ]
]
