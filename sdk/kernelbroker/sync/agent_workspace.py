"""The files of an agent, without `await`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from .. import agent_workspace
from ..protocol.messages import WorkspaceLayout
from .client import Broker, connect


class AgentWorkspace:
    """See `kernelbroker.AgentWorkspace`. If it is given no broker, `close` or `with` ends its thread."""

    def __init__(
        self,
        name: str,
        broker: Broker | None = None,
        *,
        max_size_mb: float = 1024,
        ttl_hours: float = 24.0,
        layout: WorkspaceLayout | None = None,
    ) -> None:
        self._own = None if broker is not None else connect()
        self._broker = broker or self._own
        assert self._broker is not None
        self._async = agent_workspace.AgentWorkspace(
            name,
            self._broker._async,
            max_size_mb=max_size_mb,
            ttl_hours=ttl_hours,
            layout=layout,
        )
        self._thread = self._broker._thread
        self.name = name

    def open(self) -> AgentWorkspace:
        self._thread.call(self._async.open())
        return self

    def write_file(self, relative: str, content: str | bytes) -> str:
        return self._thread.call(self._async.write_file(relative, content))

    def read_file(self, relative: str) -> bytes:
        return self._thread.call(self._async.read_file(relative))

    def list_files(self, relative: str = "") -> list[str]:
        return self._thread.call(self._async.list_files(relative))

    def delete_file(self, relative: str) -> None:
        self._thread.call(self._async.delete_file(relative))

    def get_host_path(self, relative: str = "") -> Path:
        return self._thread.call(self._async.get_host_path(relative))

    def get_container_path(self, relative: str = "") -> str:
        return self._async.get_container_path(relative)

    def get_volume_mount(self) -> dict[str, dict[str, str]]:
        return self._thread.call(self._async.get_volume_mount())

    def cleanup(self) -> None:
        self._thread.call(self._async.cleanup())

    def close(self) -> None:
        """End the thread, if this has one of its own. The files stay."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> AgentWorkspace:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
