"""codeboxapi in its local mode: IPython in the client's own process, one box at a time."""

from __future__ import annotations

import os
import tempfile

os.environ["CODEBOX_API_KEY"] = "local"

from codeboxapi import CodeBox
from codeboxapi.local import LocalBox

from peers.adapter import Adapter, Outcome


class Used(Adapter):
    blocking = True

    def open(self) -> CodeBox:
        return CodeBox(codebox_cwd=tempfile.mkdtemp(prefix="kb-"))

    def run(self, session: CodeBox, code: str, timeout: float | None = None) -> Outcome:
        outcome = Outcome()
        for chunk in session.stream_exec(code, timeout=timeout):
            if chunk.type == "txt":
                outcome.see(chunk.content)
            elif chunk.type == "img":
                outcome.images += 1
            else:
                outcome.error = chunk.content
        return outcome

    def close(self, _session: CodeBox) -> None:
        LocalBox._instance = None  # it has no `close`, and refuses a second box
