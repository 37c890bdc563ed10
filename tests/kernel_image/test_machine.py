"""Cells are told of the sandbox's limits, not of the host's processors and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
from kernelbroker_kernel import machine

MIB = 2**20


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for owner, name in [(os, "cpu_count"), (psutil, "cpu_count"), (psutil, "virtual_memory")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    if hasattr(os, "process_cpu_count"):
        monkeypatch.setattr(os, "process_cpu_count", os.process_cpu_count)
    monkeypatch.setattr(machine.Limits, "cpus", None)
    monkeypatch.setattr(machine.Limits, "memory", None)
    yield


@pytest.mark.parametrize(
    ("cpus", "expected"), [("0.5", 1), ("1", 1), ("1.5", 2), ("64", 4), ("", 4), ("many", 4)]
)
def test_processors(monkeypatch: pytest.MonkeyPatch, cpus: str, expected: int) -> None:
    """As many as the limit allows, at least one, and never more than there are."""
    monkeypatch.setenv("KERNELBROKER_CPUS", cpus)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4)
    machine.tell_limits()
    assert (os.cpu_count(), psutil.cpu_count()) == (expected, expected)
    assert psutil.cpu_count(logical=False) == expected


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the total; what this process and its children use is used."""
    stock = psutil.virtual_memory()
    monkeypatch.setenv("KERNELBROKER_MEMORY", str(512 * MIB))
    machine.tell_limits()
    told = psutil.virtual_memory()
    assert type(told) is type(stock)
    assert told.total == 512 * MIB
    assert 0 < told.used <= told.total
    assert told.available == told.free == told.total - told.used
    assert told.percent == pytest.approx(100 * told.used / told.total, abs=0.1)


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBROKER_MEMORY", str(2**60))
    machine.tell_limits()
    assert psutil.virtual_memory().total < 2**50


def test_a_session_s_own_limits_are_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBROKER_MEMORY", str(512 * MIB))
    machine.tell_limits()
    machine.change(None, 256 * MIB)
    assert psutil.virtual_memory().total == 256 * MIB
    machine.change(2.0, 2**40)  # higher ones change nothing
    assert psutil.virtual_memory().total == 256 * MIB
