"""The settings: one frozen object, from the defaults, a TOML file and the environment, in this order.

In the file a key stands as it is named here (`port = 8720`, `[pool] min_size = 5`); in the
environment it is upper case with a prefix (`KERNELBROKER_PORT`, `KERNELBROKER_POOL__MIN_SIZE`). A key
that is not known is an error that names it and where it stands. Durations are in seconds; sizes are
bytes, or text such as `2GiB`.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from .backends.base import Network

PREFIX = "KERNELBROKER_"
_FOR_CLIENTS = {"KERNELBROKER_URL", "KERNELBROKER_RUNTIME_FILE", "KERNELBROKER_CONFIG"}
"""Variables of this prefix that are not settings."""

TemplateName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3


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
    """Sessions that may wait for a sandbox; more are refused with 429."""
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
    imports: tuple[str, ...] = ("pandas", "matplotlib.pyplot")
    """Modules that are loaded before a session gets the sandbox."""
    env: dict[str, str] = {}
    """Environment variables of every kernel; those of a session go before them."""
    shared_data: Path | None = None
    """A directory that every sandbox sees read-only at /data/shared."""
    network: Network = Network.NONE
    """none, allowlist (HTTP and HTTPS to the domains of `allow`, through the broker), or open."""
    allow: tuple[str, ...] = ()
    """Domains that network = "allowlist" lets through, such as pypi.org or *.example.org."""


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
    """Where workspaces are kept; below the system's temporary directory if not set."""
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
    runtime: Literal["auto", "runc", "runsc"] = "auto"
    """auto takes gVisor (runsc) where a sandbox runs under it, else runc."""
    data_dir: Path | None = None
    """Where workspaces are kept; below the system's temporary directory if not set. The engine must
    see it under the same path, and run_dir as well."""
    run_dir: Path | None = None
    """Where sockets are made; its path must be short."""


class SessionSettings(_Section):
    idle_timeout: float = Field(default=1800, gt=0)
    """A session without executions for so long is closed."""
    max_lifetime: float = Field(default=7200, gt=0)
    """A session as old as this is closed."""
    default_timeout: float = Field(default=30, gt=0)
    """How long a cell may run that does not ask for a timeout."""
    max_timeout: float = Field(default=300, gt=0)
    """The longest timeout that a cell may ask for."""
    interrupt_grace: float = Field(default=2, gt=0)
    """How long a cell may take to react to an interrupt before its kernel is replaced."""


class LimitSettings(_Section):
    code_chars: int = Field(default=100_000, gt=0)
    """Characters of one cell."""
    output: ByteSize = _size(
        10 * _MIB, "Output of one execution; the cell runs on, the rest is cut."
    )
    event: ByteSize = _size(1 * _MIB, "Text of one event; longer text is split.")
    preview_rows: int = Field(default=500, ge=0)
    """Rows of a table that a client may ask for."""
    variables: int = Field(default=100, ge=0)
    """Variables that a result lists."""
    concurrent: int = Field(default=50, ge=1)
    """Executions that run at once, over all sessions."""
    queued: int = Field(default=100, ge=0)
    """Executions that wait, over all sessions; more are refused with 429."""


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
    """The bearer token that clients must show; made anew at each start if not set."""
    unsafe_expose_without_isolation: bool = False
    """Listen on other addresses than loopback even where user code runs as a plain process, so that
    anyone with the token owns this account."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    shutdown_timeout: float = Field(default=10, gt=0)
    """How long a shutdown may take."""
    backend: Literal["local", "docker"] = "local"
    """What launches sandboxes: jails on this machine, or containers."""
    pool: PoolSettings = PoolSettings()
    sandbox: SandboxSettings = SandboxSettings()
    local: LocalSettings = LocalSettings()
    docker: DockerSettings = DockerSettings()
    sessions: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()
    templates: dict[TemplateName, TemplateSettings] = {}
    """Recipes that sessions may ask for by name; there is always `default`."""

    @model_validator(mode="before")
    @classmethod
    def _complete_templates(cls, values: Any) -> Any:
        """Each template begins as [sandbox] and [pool] are."""
        sandbox, pool = values.get("sandbox", {}), values.get("pool", {})
        templates = values.get("templates", {})
        if not _all_tables(sandbox, pool, templates) or not _all_tables(*templates.values()):
            return values  # which the fields themselves refuse
        complete = {}
        for name, template in {"default": {}, **templates}.items():
            own_pool = template.get("pool", {})
            if _all_tables(own_pool):
                own_pool = {**pool, **own_pool}
            complete[name] = {**sandbox, **template, "pool": own_pool}
        return {**values, "templates": complete}

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


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings from a file, if one is given or named by KERNELBROKER_CONFIG, and the environment.

    Raises:
        ConfigError: a key is not known, a value does not fit, or the file cannot be read.
    """
    if path is None and environ.get("KERNELBROKER_CONFIG"):
        path = Path(environ["KERNELBROKER_CONFIG"])
    _refuse_unknown_variables(environ)
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text())
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from exc
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
    try:
        return Settings(**content)
    except SettingsError as exc:  # a section in one variable, and not JSON; tells no value
        raise ConfigError(f"in the environment: {exc}") from exc
    except ValidationError as exc:
        where = f"{path} or the environment" if path else "the environment"
        problems = (
            f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"
            for error in exc.errors(include_input=False)  # never echo a value: it may be a secret
        )
        raise ConfigError(f"in {where}: " + "; ".join(problems)) from exc


def _all_tables(*values: object) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = set()
    for name, field in Settings.model_fields.items():
        known.add(f"{PREFIX}{name}".upper())
        section = field.annotation
        if isinstance(section, type) and issubclass(section, _Section):
            known.update(f"{PREFIX}{name}__{key}".upper() for key in section.model_fields)
    for variable in environ:
        name = variable.upper()
        if name.startswith(
            f"{PREFIX}TEMPLATES__"
        ):  # known by their own names; pydantic looks further
            continue
        if name.startswith(PREFIX) and name not in known | _FOR_CLIENTS:
            raise ConfigError(f"{variable} is not a setting; see the list in config.py")
