"""Finds out by trying whether processes of jails can be saved and restored on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Callable

from . import common_files
from .base import LaunchError, Network, SandboxSpec
from .checkpoint_sandbox import ETC, KERNEL_FEATURES, CheckpointSandbox
from .criu import Criu
from .directories import remove_tree
from .local_sandbox import LocalContext
from .process_saver import CheckpointFailed

SPEC = SandboxSpec(template="checkpoint probe", process_checkpoints=True)
PROGRAM = ("-c", "import time\nwhile True: time.sleep(1)")


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointAbility:
    """Whether they can, and by what.

    Attributes:
        criu: None if they cannot.
        reason: why not.
    """

    criu: Criu | None = None
    reason: str = "no template of the broker has process_checkpoints = true"

    def why_not(self, spec: SandboxSpec) -> str:
        """Return why the processes of sandboxes of this spec cannot be saved; empty if they can."""
        if not spec.process_checkpoints:
            return f"the template {spec.template} does not have process_checkpoints = true"
        if spec.network is not Network.NONE:
            return f"the template {spec.template} has a network"
        return self.reason


async def find(
    context: LocalContext,
    name: str,
    uid: int,
    launch: Callable[[str, SandboxSpec, Criu], Awaitable[CheckpointSandbox]],
    remove: Callable[[CheckpointSandbox], Awaitable[None]],
) -> CheckpointAbility:
    """Save a small program in one jail, and restore it in another one.

    Args:
        name: the setting `local.criu`.
        uid: the user of sandboxes on the host.
        launch, remove: of a sandbox whose gateway is `PROGRAM`.
    """
    host = context.host
    if not host.root or host.setpriv is None or host.bwrap is None:
        return CheckpointAbility(reason="the broker does not run as root")
    if context.cgroups.enforced_by("pids") is None:
        return CheckpointAbility(
            reason="control groups cannot limit the processes of a sandbox here"
        )
    if (criu := Criu.find(name)) is None:
        return CheckpointAbility(reason=f"CRIU is missing: {name} (the setting local.criu)")
    run = context.directories.run
    images = context.directories.sandboxes / "checkpoint-probe"
    sandboxes = []
    try:
        common_files.write_etc(run / ETC, uid)
        await asyncio.to_thread(criu.learn_kernel, host.bwrap, run / KERNEL_FEATURES)
        await remove_tree(images)  # of a broker that died here
        images.mkdir(mode=0o700)
        for _ in range(2):
            sandboxes.append(await launch(f"probe{secrets.token_hex(4)}", SPEC, criu))
        first, second = sandboxes
        await first.save_processes(images, files=True)
        await second.restore_processes(images)
    except (CheckpointFailed, LaunchError, OSError) as error:
        return CheckpointAbility(reason=f"CRIU does not work here: {error}")
    finally:
        for sandbox in sandboxes:
            await remove(sandbox)
        await remove_tree(images)
    return CheckpointAbility(criu, "")
