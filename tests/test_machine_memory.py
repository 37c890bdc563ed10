"""The number of sandboxes that a machine has memory for."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelbroker_server import machine_memory
from kernelbroker_server.config_sections import PoolSettings

GIB = 1024**3


@pytest.mark.parametrize(
    ("memory", "sandboxes"), [(GIB, 10), (8 * GIB, 32), (24 * GIB, 96), (1024 * GIB, 200)]
)
def test_default_pool_size(memory: int, sandboxes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default size of a pool follows the memory, within bounds."""
    monkeypatch.setattr(machine_memory, "memory_bytes", lambda: memory)
    assert machine_memory.default_pool_size() == sandboxes
    assert PoolSettings().max_size == sandboxes


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    """A container's limit counts where it is less than the machine has; "max" is none."""
    (tmp_path / "none").write_text("max\n")
    machine = machine_memory.memory_bytes([tmp_path / "missing", tmp_path / "none"])
    assert machine > 0
    (tmp_path / "limit").write_text("1048576\n")
    (tmp_path / "huge").write_text("9223372036854771712\n")
    limits = [tmp_path / name for name in ("none", "limit", "huge")]
    assert machine_memory.memory_bytes(limits) == 1048576
