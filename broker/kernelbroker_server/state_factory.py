"""Creates what outlives a broker: its event store, its state directory, its keys."""

from __future__ import annotations

from pathlib import Path

from kernelbroker.protocol.errors import Unavailable

from .backends.sandbox_record import boot_id
from .config import ConfigError, ExtraMissing, Settings
from .sessions.durable_store import DurableStore
from .sessions.memory_store import MemoryStore
from .sessions.state_directory import InUse
from .sessions.store import EventStore

STATE = ".state"
"""Below data_dir, where no sandbox sees it. Brokers do not clean up names with a leading dot."""


def store(settings: Settings, data_dir: Path) -> EventStore:
    """Return the event store, not started.

    Args:
        data_dir: that of the backends.
    """
    retention, size = settings.sessions.result_retention, settings.sessions.results_size
    if settings.store is not None:
        return _postgres_store(settings, settings.store.get_secret_value(), data_dir)
    path = state_directory(settings, data_dir)
    return MemoryStore(retention) if path is None else DurableStore(path, retention, size)


def _postgres_store(settings: Settings, url: str, data_dir: Path) -> EventStore:
    try:
        from .sessions.postgres_store import PostgresStore
    except ModuleNotFoundError as exc:
        raise ExtraMissing("store", "postgres", exc.name) from exc
    return PostgresStore(
        url,
        settings.sessions.result_retention,
        settings.sessions.results_size,
        lease=settings.cluster.lease,
        place=place(data_dir),
    )


def place(data_dir: Path) -> str:
    """Where sandboxes are. Processes can be adopted on their own machine, and with their files."""
    return f"{boot_id()}:{data_dir.absolute()}"


def state_directory(settings: Settings, data_dir: Path) -> Path | None:
    """The directory of what outlives the broker; None if nothing is kept on the disk."""
    if settings.state_dir == "":
        return None
    return data_dir / STATE if settings.state_dir is None else Path(settings.state_dir)


def unusable(settings: Settings, exc: OSError | Unavailable) -> ConfigError:
    """The error for an operator whose event store cannot be opened."""
    if settings.store is not None:
        return ConfigError(f"store: {getattr(exc, 'strerror', exc)}")
    advice = "Set KERNELBROKER_STATE_DIR to a directory that the broker can write to"
    if isinstance(exc, InUse):
        advice = "End it, or give this broker a state_dir of its own (KERNELBROKER_STATE_DIR)"
    return ConfigError(f"state_dir: {exc}. {advice}")


def key_source(settings: Settings, data_dir: Path) -> Path | bytes | None:
    """Where the keys of surfaces come from; see `lasting_key`."""
    if settings.store is not None and settings.cluster.secret is not None:
        return settings.cluster.secret.get_secret_value().encode()
    return state_directory(settings, data_dir)
