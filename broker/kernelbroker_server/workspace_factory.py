"""Creates the store of workspaces from the settings. Nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .config import ExtraMissing, Settings
from .workspaces.checkpoint_store import CheckpointLimits
from .workspaces.directory_store import DirectoryStore
from .workspaces.layout import Layout
from .workspaces.replica import Replica
from .workspaces.shared_directories import make_shared_directories


def workspaces(settings: Settings, data_dir: Path) -> DirectoryStore:
    """Return the store of workspaces and checkpoints, not started. Makes the directories of shared data.

    Args:
        data_dir: that of the backends.
    """
    for template in settings.templates.values():
        if template.shared_data is not None:
            make_shared_directories(template.shared_data)
    checkpoints = settings.checkpoints
    return DirectoryStore(
        data_dir,
        retention=settings.sessions.workspace_retention,
        max_size=settings.sessions.workspaces_size,
        limits=CheckpointLimits(
            size=int(checkpoints.size),  # a plain number: it is sent to the sandbox
            total_size=int(checkpoints.tenant_size),
            count=checkpoints.tenant_count,
            retention=checkpoints.retention,
        ),
        kept_free=int(settings.limits.disk_reserve),
        replica=_replica(settings),
    )


def _replica(settings: Settings) -> Callable[[Layout], Replica] | None:
    s3 = settings.workspaces.s3
    if s3 is None:
        return None
    try:
        from .workspaces.bucket import BucketOptions
        from .workspaces.s3_replica import S3Replica, SaveOptions
    except ModuleNotFoundError as exc:
        raise ExtraMissing("workspaces.s3", "s3", exc.name) from exc
    bucket = BucketOptions(
        bucket=s3.bucket,
        prefix=s3.prefix,
        endpoint=s3.endpoint,
        region=s3.region,
        access_key=s3.access_key,
        secret_key=None if s3.secret_key is None else s3.secret_key.get_secret_value(),
        virtual_host=s3.virtual_host,
        conditional_writes=s3.conditional_writes,
        timeout=s3.timeout,
    )
    options = SaveOptions(
        interval=s3.interval,
        hold=s3.hold,
        retention=settings.sessions.workspace_retention,
        max_size=int(s3.size),
    )
    return lambda layout: S3Replica(bucket, options, layout.store_id)
