"""kern-sandbox: a warm interpreter in a container (`Sandbox.kernel`), the mode for state between cells."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import kern_sandbox

from peers.adapter import Adapter, Outcome
from peers.environments import IMAGE


@dataclass
class Box:
    stack: ExitStack
    kernel: kern_sandbox.Kernel


class Used(Adapter):
    blocking = True

    def open(self) -> Box:
        with ExitStack() as stack:
            # Compiling the image's library needs a build box that this host may not allow; the image's
            # packages are compiled already.
            sandbox = stack.enter_context(
                kern_sandbox.Sandbox(image=IMAGE, memory_mb=2048, pyc_cache=False)
            )
            kernel = stack.enter_context(sandbox.kernel())
            return Box(stack.pop_all(), kernel)
        raise AssertionError("unreachable")

    def run(self, session: Box, code: str, timeout: float | None = None) -> Outcome:
        result = session.kernel.run_code(code, timeout_s=timeout)
        error = None
        if result.fault is not None:
            error = f"{result.fault.type}: {result.fault.message}"
        elif result.exit_code:
            error = result.code_stderr.strip() or f"exit {result.exit_code}"
        text = result.stdout + "".join(each.text or "" for each in result.results)
        images = sum(each.png is not None for each in result.results)
        return Outcome(text, images, error, result.truncated)

    def close(self, session: Box) -> None:
        session.stack.close()
