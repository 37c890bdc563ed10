"""The settings there are: one frozen object, with the bounds, the default and the meaning of each.

Where they come from is told in `config_file.py`. Durations are in seconds; sizes are bytes, or text such
as `2GiB`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from kernelbroker.protocol.findings import Level, PolicyMode
from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from .backends.base import Network
from .egress.names import canonical_entry
from .tenants.tokens import TENANT_NAME

PREFIX = "KERNELBROKER_"

TemplateName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]

TenantName: TypeAlias = Annotated[str, Field(pattern=TENANT_NAME)]

MAX_CODE_CHARS = 170_000
"""As many as a request's body holds (`api.base.MAX_BODY_BYTES`), however its client writes them."""

_MIB, _GIB = 1024**2, 1024**3


def _absolute(path: Path) -> Path:
    # What mounts it has a working directory of its own, such as /, and would mount something else.
    if not path.is_absolute():
        raise ValueError("it must be an absolute path, one that begins with /")
    return path


SharedDirectory: TypeAlias = Annotated[Path, AfterValidator(_absolute)]


class ConfigError(Exception):
    """The settings cannot be used; the message names the key and where it stands."""


def _size(bytes_: int, description: str) -> Any:
    return Field(default=ByteSize(bytes_), gt=0, description=description)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PoolSettings(_Section):
    min_size: int = Field(default=3, ge=0)
    """Sandboxes kept warm and free at all times, as far as `max_size` allows."""
    max_size: int = Field(default=10, ge=1)
    """Sandboxes in any state, leased ones included."""
    max_waiters: int = Field(default=100, ge=0)
    """Sessions that may wait for a sandbox; more are refused with 429. Tenants that wait take turns;
    one that has most of a full line loses its latest places to those that have fewer."""
    max_launches: int = Field(default=2, ge=1)
    """Sandboxes launched at the same time."""
    acquire_timeout: float = Field(default=30, gt=0)
    """How long a session waits for a sandbox before it is refused with 503."""
    launch_timeout: float = Field(default=60, gt=0)
    """How long a sandbox may take to become warm."""
    scale_up_threshold: float = Field(default=0.8, gt=0)
    """The load is what is leased or waited for, divided by what is leased, free or starting. While it
    is this or more, each second one sandbox more is kept free, up to `max_size`. 1000 is never."""
    scale_down_threshold: float = Field(default=0.3, ge=0)
    """While the load is this or less, each 10 seconds one free sandbox less, down to `min_size`."""
    container_ttl: float = Field(default=3600, ge=0)
    """A sandbox that nobody leased for so long is replaced, by a new one that is warm before it goes
    if `max_size` leaves room; 0 is never."""
    health_check_interval: float = Field(default=15, ge=0)
    """How often an idle sandbox is asked whether it is well; one that does not answer within 10 seconds,
    or uses over 90 % of its memory, is replaced. 0 is never."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.scale_down_threshold >= self.scale_up_threshold:
            raise ValueError("scale_down_threshold must be below scale_up_threshold")
        return self


class SandboxSettings(_Section):
    cpus: float = Field(default=1, gt=0)
    """Processor time, in cores."""
    memory: ByteSize = _size(
        2 * _GIB, "Memory; a kernel that needs more is ended as out_of_memory."
    )
    processes: int = Field(default=100, ge=20)
    """Processes and threads."""
    tmp_size: ByteSize = _size(100 * _MIB, "Size of the private /tmp.")
    open_files: int = Field(default=1024, ge=64)
    """File descriptors of one process."""
    workspace_size: ByteSize = _size(
        1 * _GIB, "What a session's files may take on the disk; a cell that writes more is ended."
    )
    workspace_files: int = Field(default=100_000, gt=0)
    """How many files and directories a session may have."""
    imports: tuple[str, ...] = ("pandas", "matplotlib.pyplot")
    """Modules that are loaded before a session gets the sandbox."""
    env: dict[str, str] = {}
    """Environment variables of every kernel; those of a session go before them."""
    shared_data: SharedDirectory | None = None
    """A directory, by its absolute path, that every sandbox sees read-only at /data/shared."""
    network: Network = Network.NONE
    """none, allowlist (HTTP and HTTPS to the domains of `allow`, through the broker), or open."""
    allow: tuple[str, ...] = ()
    """Domains that network = "allowlist" lets through, such as pypi.org or *.example.org."""
    policy: PolicyMode = "off"
    """What becomes of risky code: nothing (the sandbox holds it), findings in its result, a refusal
    until it is confirmed, or a refusal. See docs/risk.md."""
    policy_threshold: Level = "high"
    """The level from which code counts as risky."""

    @field_validator("allow")
    @classmethod
    def _entries(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(canonical_entry, allow))


class TemplateSettings(SandboxSettings):
    """A named recipe. What it does not say is as [sandbox] and [pool] have it."""

    image: str | None = None
    """What its containers are made of; docker.image if not set. Of no use to the local backend."""
    pool: PoolSettings = PoolSettings()
    """Its own warm sandboxes."""


class LocalSettings(_Section):
    kernel_python: Path | None = None
    """Python of the kernels' own environment, made from kernel_image/requirements.txt."""
    data_dir: Path | None = None
    """Where workspaces are kept; below /var/tmp if not set."""
    run_dir: Path | None = None
    """Where sockets are made; its path must be short."""
    require_isolation: bool = False
    """Refuse to start where bubblewrap does not work, instead of falling back to plain processes."""


class DockerSettings(_Section):
    host: str | None = None
    """Where the engine listens, such as unix:///run/podman/podman.sock; DOCKER_HOST, or Docker's own
    socket, if not set."""
    image: str = "kernelbroker-kernel"
    """What sandboxes are made of, unless their template names another; `make image` builds it."""
    runtime: str = "auto"
    """A runtime that the engine offers, by name; auto takes gVisor (runsc) where a sandbox runs under
    it, else the engine's own choice."""
    transport: Literal["auto", "unix", "tcp"] = "auto"
    """How gateways are reached: by unix sockets, or on an internal network where the runtime cannot
    pass one; auto finds out, and leaves user code no way to the host."""
    data_dir: Path | None = None
    """Where workspaces are kept; below /var/tmp if not set. The engine must see it under the same path,
    and run_dir as well."""
    run_dir: Path | None = None
    """Where sockets are made; its path must be short."""
    network: str | None = None
    """The engine's network for sandboxes with network = "open"; a bridge of the broker's own, on which
    they cannot reach each other, if not set."""


class EgressSettings(_Section):
    private_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Networks that names of an allow list may lead to although they are not public, such as
    10.1.2.0/24 for a package mirror; never those of anything that trusts who can reach it."""


class PackageSettings(_Section):
    """What sessions install packages from, besides what is in the image."""

    index_url: str | None = None
    """A package index in the place of PyPI. It is reached as the template's network allows
    (docs/network.md), and seen by user code, with whatever password it holds."""
    wheels: SharedDirectory | None = None
    """A directory of wheels, by its absolute path, seen read-only by every sandbox at /opt/wheels; needs
    no network."""


class SessionSettings(_Section):
    idle_timeout: float = Field(default=1800, gt=0)
    """A session without executions for so long is closed."""
    max_lifetime: float = Field(default=7200, gt=0)
    """A session as old as this is closed."""
    default_timeout: float = Field(default=30, gt=0)
    """How long a cell may run that does not ask for a timeout; at most `max_timeout`."""
    max_timeout: float = Field(default=300, gt=0)
    """The longest timeout that a cell may ask for."""
    interrupt_grace: float = Field(default=2, gt=0)
    """How long a cell may take to react to an interrupt before its kernel is replaced."""
    workspace_retention: float = Field(default=86400, ge=0)
    """How long a session's files are kept after it, for a later one that names them; 0 for not at all."""
    workspaces_size: ByteSize = Field(default=ByteSize(0), ge=0)
    """What all kept files may take together; the oldest are removed first; 0 for no limit."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.default_timeout > self.max_timeout:
            raise ValueError("default_timeout must be at most max_timeout: set both")
        return self


class LimitSettings(_Section):
    code_chars: int = Field(default=100_000, gt=0, le=MAX_CODE_CHARS)
    """Characters of one cell; at most 170,000, which is what a request holds."""
    output: ByteSize = _size(
        10 * _MIB, "Output of one execution; the cell runs on, the rest is cut."
    )
    event: ByteSize = _size(1 * _MIB, "Text of one event; longer text is split.")
    file: ByteSize = _size(100 * _MIB, "One uploaded file; cells may write larger ones.")
    preview_rows: int = Field(default=500, ge=10, le=500)
    """Rows of a table that a client may ask for: from 10, which it gets if it does not ask, to 500."""
    variables: int = Field(default=100, ge=0)
    """Variables that a result lists."""
    concurrent: int = Field(default=50, ge=1)
    """Executions that run at once, over all sessions."""
    queued: int = Field(default=100, ge=1)
    """Executions of one tenant that wait, over its sessions; more are refused with 429."""


class TenantSettings(_Section):
    max_sessions: int | None = Field(default=None, ge=1)
    """Sessions open at once; no bound but the pool's if not set."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Executions that run at once; no bound but limits.concurrent if not set."""
    rate: float | None = Field(default=None, gt=0)
    """Executions a minute; as many may come at once. No bound if not set."""
    templates: tuple[str, ...] | None = None
    """The templates that its sessions may have; all if not set."""
    policy: PolicyMode | None = None
    """What becomes of risky code, whatever its template says; as the template says if not set."""
    policy_threshold: Level = "high"
    """The level from which that policy applies."""


class TlsSettings(_Section):
    certificate: Path | None = None
    """PEM file of the certificate and those between it and the root; the broker then speaks https."""
    key: Path | None = None
    """PEM file of its private key."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8720, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    token: SecretStr | None = None
    """The bearer token of the tenant `default`; made anew at each start if neither it nor a token_file
    nor a tokens_file is set."""
    token_file: Path | None = None
    """A file that holds the token, in place of `token`: a secret as Docker and systemd mount it."""
    tokens_file: Path | None = None
    """Tokens of tenants, only their hashes, as `kernelbroker-server token create` writes them; looked
    at again whenever it changes."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages of these origins, such as https://app.example.org, may open a WebSocket, besides
    those of the broker's own address; programs, which send no Origin, always may."""
    unsafe_expose_without_isolation: bool = False
    """Listen on other addresses than loopback even where user code runs as a plain process, so that
    anyone with the token owns this account."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """What is logged, to standard error: this and what is worse."""
    log_format: Literal["text", "json"] = "text"
    """text for people, json for machines: an object a line. Both tell the request, the session and
    the execution that a line belongs to; neither has code, output, tokens or values."""
    metrics_token: SecretStr | None = None
    """Lets /metrics be read, and nothing else; the token of the tenant `default` does, too."""
    drain_timeout: float = Field(default=30, ge=0)
    """How long running executions are waited for at a shutdown, while new ones are refused."""
    shutdown_timeout: float = Field(default=10, gt=0)
    """How long each step of the rest of a shutdown may take: closing sessions, removing sandboxes."""
    audit_log: Path | None = None
    """A file to which who did what, and what sandboxes reached, is appended as JSON lines."""
    backend: Literal["local", "docker"] = "local"
    """What launches sandboxes: jails on this machine, or containers."""
    pool: PoolSettings = PoolSettings()
    sandbox: SandboxSettings = SandboxSettings()
    local: LocalSettings = LocalSettings()
    docker: DockerSettings = DockerSettings()
    packages: PackageSettings = PackageSettings()
    egress: EgressSettings = EgressSettings()
    sessions: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()
    tls: TlsSettings = TlsSettings()
    templates: dict[TemplateName, TemplateSettings] = {}
    """Recipes that sessions may ask for by name; there is always `default`."""
    tenants: dict[TenantName, TenantSettings] = {}
    """Bounds of tenants, by the name that their tokens have; one that is not here has none."""

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers write them."""
        return tuple(origin.lower().rstrip("/") for origin in origins)

    @model_validator(mode="before")
    @classmethod
    def _complete_templates(cls, values: Any) -> Any:
        """Each template begins as [sandbox] and [pool] are."""
        sandbox, pool = _table(values.get("sandbox", {})), _table(values.get("pool", {}))
        templates = _table(values.get("templates", {}))
        if sandbox is None or pool is None or templates is None:
            return values  # which the fields themselves refuse
        complete: dict[str, Any] = {}
        for name, given in {"default": {}, **templates}.items():
            if (template := _table(given)) is None:
                complete[name] = given
                continue
            own_pool = template.get("pool", {})
            if (table := _table(own_pool)) is not None:
                own_pool = {**pool, **table}
            complete[name] = {**sandbox, **template, "pool": own_pool}
        return {**values, "templates": complete}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.tls.certificate is None) != (self.tls.key is None):
            raise ValueError("tls.certificate and tls.key belong together: set both")
        for name, tenant in self.tenants.items():
            if unknown := set(tenant.templates or ()) - set(self.templates):
                raise ValueError(f"tenants.{name}.templates: no template {sorted(unknown)[0]!r}")
        return self

    @property
    def on_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # What is passed to `Settings(...)` is the file's content: the environment goes before it.
        return env_settings, init_settings


def _table(value: Any) -> Mapping[str, Any] | None:
    """What was set of a section, given as a table or as an object; None if it is neither."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in value.model_fields_set}
    return value if isinstance(value, Mapping) else None
