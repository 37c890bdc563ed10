"""A forked sandbox has the properties of a plain one, field by field, except for listed differences."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import TypeAlias

import kernelbroker.sync
import pytest

from tests.e2e.support import whole_system

from .launch_ways import WAYS, broker
from .observed import NAMESPACES, Observed, differences, namespaces, observe

pytestmark = whole_system

_COMMAND = "only a start of a program sets it; what Python says of it is as in a plain sandbox"
_SESSION = "the gateway has a process session of its own, since it joins the one of the holder"
_FILTERS = "the fork server's filter, which forbids less than the sandbox's, is inherited as well"
_HOLDER = "a shell that waits holds the namespaces for the gateway"
ALLOWED = {
    "kernel.cmdline": _COMMAND,
    "kernel.environ": _COMMAND,
    "kernel.processes": _HOLDER,
    "kernel.status.Seccomp_filters": _FILTERS,
    "kernel.threads": "the background thread of Arrow's allocator would not survive a fork",
    "gateway.cmdline": _COMMAND,
    "gateway.environ": _COMMAND,
    "gateway.descriptors": "a pipe to the broker for the exit status, should the server have ended",
    "gateway.group": _SESSION,
    "gateway.parent": "it is outside of the sandbox",
    "gateway.session": _SESSION,
    "gateway.status.Seccomp_filters": _FILTERS,
    "host.others": _HOLDER,
    "python.kept from the collector": "so that a collection does not copy the memory that is shared",
    "python.modules": "those of the gateway and of `fork_server._SHARED` were imported before the fork",
    "python.warnings": "the two filters that scipy adds when it is imported",
}
"""The fields in which a forked sandbox may differ from a plain one, and why."""

PLACES = ("kernel", "gateway", "python", "host")


Observe: TypeAlias = Callable[[str], list[Observed]]


@pytest.fixture(scope="module")
def observed() -> Observe:
    """Two sandboxes of one broker that were launched in this way; launched once."""

    @cache
    def observe_way(way: str) -> list[Observed]:
        # As a shell starts a broker in the background. Our gateway handles this signal, a kernel does not.
        before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        try:
            with broker(way, POOL__MIN_SIZE=2) as client:
                return _observe_two(client)
        finally:
            signal.signal(signal.SIGQUIT, before)

    return observe_way


def _observe_two(client: kernelbroker.sync.Broker) -> list[Observed]:
    with ExitStack() as stack:  # both live at once: the kernel gives numbers of namespaces anew
        sessions = [stack.enter_context(client.session()) for _ in range(2)]
        return [observe(session) for session in sessions]


@pytest.mark.parametrize("way", WAYS)
def test_two_sandboxes_agree(observed: Observe, way: str) -> None:
    """Two sandboxes that were launched in the same way agree in all fields."""
    one, other = observed(way)
    assert len(one.fields) > 300
    assert differences(one.fields, other.fields) == {}


@pytest.mark.parametrize("way", WAYS)
def test_namespaces_are_its_own(observed: Observe, way: str) -> None:
    """Each namespace of a sandbox is neither the host's nor another sandbox's."""
    host, (one, other) = namespaces("self"), observed(way)
    for kind in NAMESPACES:
        assert len({host[kind], one.namespaces[kind], other.namespaces[kind]}) == 3, kind


@pytest.mark.parametrize("place", PLACES)
def test_a_forked_sandbox_is_as_a_plain_one(observed: Observe, place: str) -> None:
    """A forked sandbox differs from a plain one only in the fields that are listed."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert set(differences(plain.of(place), forked.of(place))) - ALLOWED.keys() == set()


def test_the_list_of_differences_is_exact(observed: Observe) -> None:
    """The list has no field in which forked and plain sandboxes agree."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert ALLOWED.keys() <= differences(plain.fields, forked.fields).keys()


def test_no_module_is_missing(observed: Observe) -> None:
    """What is loaded in a plain sandbox is loaded in a forked one."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert set(plain.fields["python.modules"]) <= set(forked.fields["python.modules"])
