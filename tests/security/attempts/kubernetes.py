"""What differs in a Pod of the tests' cluster: its node decides it, and it enforces no NetworkPolicy."""

from __future__ import annotations

_POLICY = (
    "NetworkPolicies refuse it, which the cluster of the tests does not enforce; /health says so"
)
_NODE = "a Pod cannot limit its processes; podPidsLimit of the kubelet does"

NOT_MADE = frozenset({"another gateway by its socket"})
"""There are no sockets."""

ALSO_RIGHT: dict[str, tuple[str, str]] = {
    "its memory by a call": (
        "done",
        "containerd's profile allows the call, which reads nothing here",
    ),
    "one that was not meant to be there": (
        "termination-log",
        "the kubelet mounts this file into each container; the limit of files' sizes holds for it",
    ),
    "an interface to somewhere": ("eth0", "the broker comes in by it"),
    "the internet": ("timed out", _POLICY),
    "datagrams": ("done", _POLICY),
    "groups and broadcasts": ("done", _POLICY),
    "the metadata service": ("timed out", _POLICY),
    "the broker's port on the host's addresses": ("ECONNREFUSED", _POLICY),
    "processes": ("done", _NODE),
    "threads": ("done", _NODE),
}
"""One further verdict that is expected, by the attempt's name, and the reason."""
