"""The debugger, which is loaded when a client first asks for it: its import takes a quarter of a second."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from ipykernel.ipkernel import IPythonKernel

from . import overrides


@overrides(IPythonKernel, "_kernel_modules", "_publish_debug_event", "_is_debugpy_available")
class DebuggedKernel(IPythonKernel):
    """A kernel that was made without `debugpy`, and says that it has it."""

    _stopped: asyncio.Future[None] | None = None

    @property
    def kernel_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super().kernel_info
        features = info["supported_features"]
        if "debugger" not in features and importlib.util.find_spec("debugpy") is not None:
            features.append("debugger")
        return info

    async def do_debug_request(self, msg: Any) -> Any:
        """Called in the loop of the control thread."""
        debugger: Any = importlib.import_module("ipykernel.debugger")
        if not debugger._is_debugpy_available:
            importlib.reload(debugger)
            if debugger._is_debugpy_available:
                self._load()
        return await super().do_debug_request(msg)

    def _load(self) -> None:
        """What the stock class does as it is made and started."""
        self.debugger = self.debugger_class(
            self.log,
            self.debugpy_stream,
            self._publish_debug_event,
            self.debug_shell_socket,
            self.session,
            self._kernel_modules,
            self.debug_just_my_code,
            self.filter_internal_frames,
        )
        self._stopped = asyncio.ensure_future(self.poll_stopped_queue())
