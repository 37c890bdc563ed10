"""Creates the backends whose libraries are extras of this distribution, from their settings."""

from __future__ import annotations

from pathlib import Path

from .backends.base import Backend
from .config import ConfigError, ExtraMissing
from .config_kubernetes import KubernetesSettings
from .config_sections import DockerSettings
from .egress.proxy import Proxy


def docker(
    settings: DockerSettings,
    proxy: Proxy,
    runtime: str,
    data_dir: Path,
    run_dir: Path,
    id_file: Path | None,
) -> Backend:
    """Return the backend of a runtime; the runtime of the settings if it is empty."""
    try:
        from .backends.docker import DockerBackend
        from .backends.docker_transport import Transport
    except ModuleNotFoundError as exc:
        raise _missing("docker", exc) from exc
    return DockerBackend(
        image=settings.full_name(settings.image),
        host=settings.host,
        runtime=runtime or settings.runtime,
        transport=Transport(settings.transport),
        network=settings.network,
        proxy=proxy,
        data_dir=data_dir,
        run_dir=run_dir,
        id_file=id_file,
    )


def kubernetes(
    settings: KubernetesSettings, runtime_class: str | None, data_dir: Path, id_file: Path | None
) -> Backend:
    """Return the backend of a runtime class."""
    try:
        from .backends.kubernetes import KubernetesBackend
        from .backends.pod_manifest import PodSettings
    except ModuleNotFoundError as exc:
        raise _missing("kubernetes", exc) from exc
    return KubernetesBackend(
        settings=PodSettings(
            image=settings.image,
            image_pull_policy=settings.image_pull_policy,
            pull_secrets=settings.pull_secrets,
            runtime_class=runtime_class,
            node_selector=settings.node_selector,
            tolerations=settings.tolerations,
            topology_spread=settings.topology_spread,
            priority_class=settings.priority_class,
            labels=settings.labels,
            annotations=settings.annotations,
            cpu_request=settings.cpu_request,
            memory_request=settings.memory_request,
            deadline=settings.deadline,
            claims=settings.claims,
            volume_images=settings.volume_images,
            patch=settings.patch,
        ),
        data_dir=data_dir,
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        namespace=settings.namespace,
        start_timeout=settings.start_timeout,
        schedule_timeout=settings.schedule_timeout,
        require_policies=settings.require_network_policies,
        id_file=id_file,
    )


def _missing(name: str, error: ModuleNotFoundError) -> ConfigError:
    return ExtraMissing(f'backend = "{name}"', name, error.name)
