"""All settings as one frozen object. `config_file.py` loads it; `config_sections.py` has the sections."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .advice import install_extra
from .config_cluster import ClusterSettings
from .config_code import CodeSettings
from .config_kubernetes import KubernetesSettings
from .config_routing import RiskSettings, RoutingSettings
from .config_sections import (
    AuthSettings,
    CheckpointSettings,
    DockerSettings,
    EgressSettings,
    LimitSettings,
    LocalSettings,
    PackageSettings,
    PoolSettings,
    SandboxSettings,
    SessionSettings,
    TenantSettings,
    TlsSettings,
    WebhookSettings,
)
from .config_surfaces import (
    BrowserSettings,
    E2bSettings,
    GrpcSettings,
    JupyterSettings,
    McpSettings,
)
from .config_templates import PROFILES, BackendName, TemplateSettings
from .config_upstreams import UpstreamName, UpstreamSettings
from .config_workspaces import WorkspaceSettings
from .tenants.tokens import TENANT_NAME

PREFIX = "KERNELBROKER_"

TemplateName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]

AUTO = "auto"
"""No template has this name: with it, each cell runs in the template that its code needs."""

FORGE = "forge"
"""No upstream has this name: http://forge.internal/ leads to the forges."""

TenantName: TypeAlias = Annotated[str, Field(pattern=TENANT_NAME)]


class ConfigError(Exception):
    """The settings cannot be used. The message names the key and where it is set."""


class ExtraMissing(ConfigError):
    """A setting needs a package that only an extra brings.

    Args:
        setting: what needs it.
        extra: its name, of the distribution `kernelbroker-server`.
        module: what could not be imported.
    """

    def __init__(self, setting: str, extra: str, module: str | None = None) -> None:
        needed = module or f"the extra {extra}"
        super().__init__(f"{setting} needs {needed}. Install it: {install_extra(extra)}")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8720, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    token: SecretStr | None = None
    """The bearer token of the tenant `default`. If neither this nor token_file nor tokens_file is set, the
    broker makes a token at its first start, and keeps it in `state_dir`."""
    token_file: Path | None = None
    """A file that contains the token, in place of `token`: for secrets mounted by Docker or systemd."""
    tokens_file: Path | None = None
    """A file with the hashes of tenants' tokens, written by `kernelbroker-server token create`. The broker
    reads it again when it changes."""
    allowed_origins: tuple[str, ...] = ()
    """Origins, such as https://app.example.org, whose web pages may use the API (CORS) and open WebSockets.
    The broker's origin, and programs, which send no Origin header, are always allowed."""
    unsafe_expose_without_isolation: bool = False
    """Listen on other addresses than loopback although user code runs as a plain process. Then everyone
    who has the token controls this account."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged, to standard error."""
    log_format: Literal["text", "json"] = "text"
    """`text`, or `json`: one object for each line. Both name the request, the session and the execution
    that a line belongs to. Neither contains code, output, tokens or values of environment variables."""
    log_file: Path | None = None
    """A file for the log, in addition to standard error. At 100 MB it is renamed; five files are kept."""
    metrics_token: SecretStr | None = None
    """A token that gives access to /metrics only. The token of the tenant `default` gives it as well."""
    shutdown: Literal["adopt", "sleep", "close"] = "adopt"
    """What SIGTERM does. `adopt` leaves sessions and sandboxes to the next broker with the same state_dir,
    for `sandbox.orphan_grace` seconds, with executions that take longer than 2 s more. `sleep` ends
    sandboxes, and puts sessions to sleep after their executions: the next broker has them with those of
    their variables that could be saved. `close` waits for executions, and ends everything, as SIGINT
    does."""
    drain_timeout: float = Field(default=30, ge=0)
    """How long a shutdown waits for running executions. New ones are refused meanwhile."""
    shutdown_timeout: float = Field(default=10, gt=0)
    """How long each further step of a shutdown may take: closing sessions, removing sandboxes."""
    audit_log: Path | None = None
    """The file of the audit log, which records who did what and what sandboxes connected to. One JSON
    object for each line is appended."""
    state_dir: str | None = None
    """The directory of what must survive the broker: executions with their code, events and results,
    idempotency keys and confirmations. One broker has it at a time. If not set, `.state` in the backend's
    data_dir. With "" nothing is written to the disk, and all of it ends with the broker."""
    store: SecretStr | None = None
    """The database of the event store, `postgresql://USER:PASSWORD@HOST/NAME`, which several brokers may
    share. If not set, a file in `state_dir`. Needs the extra `postgres`."""
    console: bool = True
    """Serve the web page for people at /console. See docs/console.md."""
    docs: bool = True
    """Serve this documentation at /docs, without a token. It needs no network."""
    backend: BackendName = "local"
    """The kind of sandboxes: jails on this machine (local), containers (docker), or Pods of a cluster
    (kubernetes). A template can have another one: see docs/templates.md."""
    pool: PoolSettings = PoolSettings()
    sandbox: SandboxSettings = SandboxSettings()
    local: LocalSettings = LocalSettings()
    docker: DockerSettings = DockerSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    packages: PackageSettings = PackageSettings()
    egress: EgressSettings = EgressSettings()
    upstreams: dict[UpstreamName, UpstreamSettings] = {}
    """Servers that sandboxes reach at http://NAME.internal/, with credentials of the broker."""
    sessions: SessionSettings = SessionSettings()
    webhooks: WebhookSettings = WebhookSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    limits: LimitSettings = LimitSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    mcp: McpSettings = McpSettings()
    risk: RiskSettings = RiskSettings()
    routing: RoutingSettings = RoutingSettings()
    code: CodeSettings = CodeSettings()
    browser: BrowserSettings = BrowserSettings()
    jupyter: JupyterSettings = JupyterSettings()
    e2b: E2bSettings = E2bSettings()
    grpc: GrpcSettings = GrpcSettings()
    cluster: ClusterSettings = ClusterSettings()
    templates: dict[TemplateName, TemplateSettings] = {}
    """Named recipes for sandboxes. There is always one named `default`."""
    tenants: dict[TenantName, TenantSettings] = {}
    """Limits of tenants, by the name in their tokens. A tenant that is not listed has no limits."""

    @field_validator("allowed_origins")
    @classmethod
    def _normalize_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """The origins as browsers send them."""
        return tuple(origin.lower().rstrip("/") for origin in origins)

    @model_validator(mode="before")
    @classmethod
    def _complete_templates(cls, values: Any) -> Any:
        """Fill in each template from its profile, [sandbox] and [pool]."""
        sandbox, pool = _table(values.get("sandbox", {})), _table(values.get("pool", {}))
        templates = _table(values.get("templates", {}))
        if sandbox is None or pool is None or templates is None:
            return values  # the fields refuse these
        complete: dict[str, Any] = {}
        isolated = _isolated_template(values, templates)
        for name, given in {"default": {}, **isolated, **templates}.items():
            if (template := _table(given)) is None:
                complete[name] = given
                continue
            own_pool = template.get("pool", {})
            if (table := _table(own_pool)) is not None:
                own_pool = {**pool, **table}
            profile = template.get("profile")
            preset = PROFILES.get(profile, {}) if isinstance(profile, str) else {}
            complete[name] = {**sandbox, **preset, **template, "pool": own_pool}
        return {**values, "templates": complete}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.store is not None:
            if not self.store.get_secret_value().startswith(("postgresql://", "postgres://")):
                raise ValueError("store must be the URL of a database: postgresql://USER@HOST/NAME")
            if self.cluster.secret is None:
                raise ValueError(
                    "cluster.secret must be set, since store is: one text for all brokers"
                )
        if (self.tls.certificate is None) != (self.tls.key is None):
            raise ValueError("tls.certificate and tls.key must both be set")
        for name, template in self.templates.items():
            if unknown := set(template.upstreams) - set(self.upstreams):
                raise ValueError(
                    f"templates.{name}.upstreams: there is no upstream {sorted(unknown)[0]!r}"
                )
            known = {"*", *(each.host for each in self.code.forges)}
            if unknown := set(template.forges) - known:
                raise ValueError(
                    f"templates.{name}.forges: there is no forge {sorted(unknown)[0]!r} in code.forges"
                )
            if template.runtime is not None and self.backend_of(template) == "local":
                raise ValueError(
                    f'templates.{name}.runtime needs backend = "docker" or "kubernetes"'
                )
        if FORGE in self.upstreams:
            raise ValueError(f"upstreams.{FORGE}: this name is for code.forges; choose another one")
        if AUTO in self.templates:
            raise ValueError(f"templates.{AUTO}: this name selects routing; choose another one")
        for kind, named in self.routing:
            if isinstance(named, str) and named not in self.templates:
                raise ValueError(f"routing.{kind}: there is no template {named!r}")
        for name, target in self.e2b.templates.items():
            if target not in self.templates:
                raise ValueError(f"e2b.templates.{name}: there is no template {target!r}")
        for name, tenant in self.tenants.items():
            if unknown := set(tenant.templates or ()) - set(self.templates):
                raise ValueError(
                    f"tenants.{name}.templates: there is no template {sorted(unknown)[0]!r}"
                )
        return self

    def backend_of(self, template: TemplateSettings) -> BackendName:
        """The kind of a template's sandboxes."""
        return template.backend or self.backend

    def image_of(self, template: TemplateSettings) -> str | None:
        """The image of a template's containers; None for `docker.image`."""
        image = template.image
        if image is None and template.browser and self.backend_of(template) == "docker":
            image = self.docker.browser_image
        return None if image is None else self.docker.full_name(image)

    @property
    def on_loopback(self) -> bool:
        """Whether `host` is certainly a loopback address."""
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
        # The arguments of `Settings(...)` are the content of the file, which the environment overrides.
        return env_settings, init_settings


def _table(value: Any) -> Mapping[str, Any] | None:
    """The keys that were set in a section, given as a table or as an object; None if it is neither."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in value.model_fields_set}
    return value if isinstance(value, Mapping) else None


def _isolated_template(values: Mapping[str, Any], templates: Mapping[str, Any]) -> dict[str, Any]:
    """A template for code that must be isolated, if none has containers or the profile `strict`."""
    tables = [_table(each) or {} for each in templates.values()]
    routing = _table(values.get("routing", {})) or {}
    default = values.get("backend", "local")
    has_one = any(
        each.get("profile") == "strict" or each.get("backend", default) != "local"
        for each in tables
    )
    if has_one or routing.get("docker_simple") is not None or default != "local":
        return {}
    name = "strict" if "strict" not in templates else "strict-jail"
    return {name: {"profile": "strict", "pool": {"min_size": 0}}}
