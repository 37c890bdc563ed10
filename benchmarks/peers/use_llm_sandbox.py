"""llm-sandbox: bubblewrap (a new interpreter for each cell), and an interactive session in a container."""

from __future__ import annotations

import subprocess

from llm_sandbox import InteractiveSandboxSession, SandboxSession

from peers.adapter import Adapter, Outcome
from peers.environments import IMAGE


class Bubblewrap(Adapter):
    """As the README shows it, with the system's Python: there is no pandas, and there are no plots."""

    blocking = True
    stateless = True
    shows_values = False

    def open(self) -> SandboxSession:
        session = SandboxSession(backend="bubblewrap", lang="python")
        session.open()
        return session

    def run(self, session: SandboxSession, code: str, timeout: float | None = None) -> Outcome:
        result = session.run(code, timeout=timeout)
        error = (result.stderr or "failed") if result.exit_code else None
        return Outcome(result.stdout, error=error)

    def close(self, session: SandboxSession) -> None:
        session.close()


class Container(Bubblewrap):
    """`InteractiveSandboxSession` with an image that needs no installation ("fast production mode")."""

    stateless = False
    shows_values = True

    def open(self) -> InteractiveSandboxSession:
        session = InteractiveSandboxSession(
            lang="python",
            kernel_type="ipython",
            image=IMAGE,
            skip_environment_setup=True,
            keep_template=True,  # else the image is removed at the end
        )
        session.open()
        return session

    def run(
        self, session: InteractiveSandboxSession, code: str, timeout: float | None = None
    ) -> Outcome:
        result = session.run(code, timeout=timeout)
        error = None
        if result.exit_code:
            error = result.stderr or result.stdout or "failed"
        return Outcome(result.stdout, error=error)

    def other_processes(self) -> set[int]:
        argv = ["docker", "ps", "-q", "--filter", f"ancestor={IMAGE}"]
        containers = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        pids: set[int] = set()
        for container in containers:
            top = subprocess.run(
                ["docker", "top", container, "-eo", "pid"],
                capture_output=True,
                text=True,
                check=True,
            )
            pids |= {int(pid) for pid in top.stdout.split()[1:]}
        return pids
