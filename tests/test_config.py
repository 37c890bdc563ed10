"""The settings: their sources, and error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_server.api.base import MAX_BODY_BYTES
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.backend_set import BackendSet
from kernelbroker_server.config import ConfigError, Settings
from kernelbroker_server.config_file import load
from kernelbroker_server.config_sections import (
    MAX_CODE_CHARS,
    LimitSettings,
    PoolSettings,
    SandboxSettings,
)
from kernelbroker_server.factories import backend_name, backends, proxy, spec
from kernelbroker_server.machine_memory import default_pool_size
from kernelbroker_server.supervisor import Supervisor
from pydantic import ValidationError

SECRET = "a-token-that-no-message-may-show"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith("KERNELBROKER_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    file = path / "broker.toml"
    file.write_text(text)
    return file


def test_defaults() -> None:
    """Without any setting the documented limits apply."""
    settings = load(None)
    assert (settings.host, settings.port, settings.token) == ("127.0.0.1", 8720, None)
    assert (settings.pool.min_size, settings.pool.max_size) == (3, default_pool_size())
    assert (settings.sessions.idle_timeout, settings.sessions.max_lifetime) == (1800, 7200)
    assert (settings.sessions.default_timeout, settings.sessions.max_timeout) == (30, 300)
    assert settings.sandbox.memory == 2 * 1024**3
    assert (settings.limits.output, settings.limits.event) == (10 * 1024**2, 1024**2)
    assert (settings.limits.concurrent, settings.limits.queued) == (50, 100)


def test_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file overrides the defaults, and the environment the file, key by key."""
    file = write(
        tmp_path,
        'port = 1\nhost = "::1"\n[pool]\nmin_size = 5\nmax_size = 6\n[sandbox]\nmemory = "1GiB"\n'
        'imports = ["numpy"]\n',
    )
    monkeypatch.setenv("KERNELBROKER_PORT", "2")
    monkeypatch.setenv("KERNELBROKER_POOL__MIN_SIZE", "4")
    settings = load(file)
    assert (settings.port, settings.host) == (2, "::1")
    assert (settings.pool.min_size, settings.pool.max_size) == (4, 6)
    assert settings.sandbox.memory == 1024**3
    assert settings.sandbox.imports == ("numpy",)


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KERNELBROKER_CONFIG names a file; an argument overrides it."""
    monkeypatch.setenv("KERNELBROKER_CONFIG", str(write(tmp_path, "port = 1")))
    assert load(None).port == 1
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert load(other).port == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 1", "prot: no such setting (see docs/configuration.md)"),
        ("[pool]\nmin_sise = 1", "pool.min_sise"),
        ("[pol]\nmin_size = 1", "pol"),
        ("port = 70000", "port"),
        ("[pool]\nmax_size = 0", "pool.max_size"),
        ("[pool]\nscale_up_threshold = 0.3", "scale_down_threshold must be below"),
        ('[sandbox]\nmemory = "lots"', "sandbox.memory"),
        ("[sessions]\nidle_timeout = nan", "sessions.idle_timeout"),
        ("[sessions]\nidle_timeout = -1", "sessions.idle_timeout"),
        ("[sessions]\nmax_timeout = 20", "default_timeout must be at most max_timeout"),
        ("[limits]\ncode_chars = 200_000", "limits.code_chars"),
        ("[limits]\npreview_rows = 9", "limits.preview_rows"),
        (
            '[sandbox]\nshared_data = "etc"',
            "sandbox.shared_data: it must be an absolute",
        ),
        (
            '[templates.web]\nshared_data = "etc"',
            "templates.web.shared_data: it must be",
        ),
        ('[packages]\nwheels = ""', "packages.wheels: it must be an absolute path"),
    ],
)
def test_errors_of_a_file_name_the_key(tmp_path: Path, text: str, named: str) -> None:
    """An unknown key or invalid value is named with its file."""
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert named in str(refused.value)
    assert str(file) in str(refused.value)


def test_an_inherited_error_is_reported_once(tmp_path: Path) -> None:
    """An error in [sandbox] or [pool] is reported there only, and an own error of a template there."""
    text = '[pool]\nmin_sise = 1\n[sandbox]\nmemory = "lots"\n[templates.big]\nmemry = 1\n'
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text))
    _, _, told = str(refused.value).partition("environment: ")
    keys = [problem.partition(":")[0] for problem in told.split("; ")]
    assert keys == ["pool.min_sise", "sandbox.memory", "templates.big.memry"]


def test_allow_lists_are_normalized(tmp_path: Path) -> None:
    """Invalid entries are named by their key, and networks are parsed."""
    text = '[sandbox]\nallow = ["PyPI.org."]\n[egress]\nprivate_networks = ["10.1.2.0/24"]\n'
    settings = load(write(tmp_path, text + '[templates.web]\nallow = ["*.bücher.example"]\n'))
    assert settings.templates["default"].allow == ("pypi.org",)
    assert settings.templates["web"].allow == ("*.xn--bcher-kva.example",)
    assert [str(network) for network in settings.egress.private_networks] == ["10.1.2.0/24"]
    for wrong in ("https://pypi.org", "10.0.0.1", "*"):
        file = write(tmp_path, f'[templates.web]\nallow = ["{wrong}"]\n')
        with pytest.raises(ConfigError, match=r"templates\.web\.allow.*such as pypi\.org"):
            load(file)


def test_default_requests_fit_the_limits() -> None:
    """The longest code fits into a request however it is escaped; default requests are accepted."""
    code = "\N{GRINNING FACE}" * MAX_CODE_CHARS
    assert len(json.dumps({"code": code})) + 1024 < MAX_BODY_BYTES
    assert LimitSettings(code_chars=MAX_CODE_CHARS, preview_rows=10).preview_rows == 10
    assert ExecutionRequest(code="").preview_rows == 10


def test_origins_are_normalized() -> None:
    """Origins are kept as browsers send them."""
    assert Settings(allowed_origins=("https://App.Example.org/",)).allowed_origins == (
        "https://app.example.org",
    )


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"= 3"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    """A file that cannot be parsed is named."""
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broker\.toml"):
        load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that cannot be read is named, with the reason."""
    with pytest.raises(ConfigError, match=r"none\.toml.*No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    "variable",
    [
        "KERNELBROKER_PROT",
        "KERNELBROKER_POOL__MIN_SISE",
        "KERNELBROKER_POOL_MIN_SIZE",
        "kernelbroker_prot",
        "KERNELBROKER_",
    ],
)
def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A variable with the prefix that is not a setting is named."""
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(ConfigError) as refused:
        load(None)
    assert variable in str(refused.value)
    assert SECRET not in str(refused.value)


def test_variables_of_clients_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables for clients on the same machine are not errors."""
    monkeypatch.setenv("KERNELBROKER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", "/run/broker.json")
    assert load(None) == Settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KERNELBROKER_PORT", SECRET),
        ("KERNELBROKER_POOL", f"{{{SECRET}"),
        ("KERNELBROKER_POOL", f'{{"min_size": "{SECRET}"}}'),
        ("KERNELBROKER_POOL", f'"{SECRET}"'),
        ("KERNELBROKER_SANDBOX__MEMORY", SECRET),
        ("KERNELBROKER_SANDBOX__IMPORTS", f"[{SECRET}"),
        ("KERNELBROKER_UNSAFE_EXPOSE_WITHOUT_ISOLATION", SECRET),
    ],
)
def test_errors_do_not_show_values(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """An invalid value is named by its key only: it may be a secret."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        load(None)
    assert SECRET not in str(refused.value)
    key = variable.removeprefix("KERNELBROKER_").lower().partition("__")[0]
    assert key in str(refused.value)


def test_the_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is in the settings, and in no text made of them."""
    monkeypatch.setenv("KERNELBROKER_TOKEN", SECRET)
    settings = load(None)
    assert settings.token is not None
    assert settings.token.get_secret_value() == SECRET
    assert (
        SECRET
        not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    )


def test_settings_are_frozen() -> None:
    """Settings cannot be changed."""
    settings = load(None)
    with pytest.raises(ValidationError):
        settings.port = 1
    with pytest.raises(ValidationError):
        settings.pool.min_size = 1


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("localhost.example.com", False),
        ("", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_loopback_addresses(host: str, loopback: bool) -> None:
    """Only certain loopback addresses count as loopback."""
    assert Settings(host=host).on_loopback == loopback


def test_policies_of_templates(tmp_path: Path) -> None:
    """There is no policy by default; a template's own policy overrides the common one."""
    assert load(None).templates["default"].policy == "off"
    path = tmp_path / "broker.toml"
    path.write_text(
        '[sandbox]\npolicy = "warn"\n[templates.prod]\npolicy = "block"\npolicy_threshold = "low"'
    )
    templates = load(path).templates
    assert (templates["default"].policy, templates["default"].policy_threshold) == ("warn", "high")
    assert (templates["prod"].policy, templates["prod"].policy_threshold) == ("block", "low")


def test_templates_inherit_from_sandbox_and_pool(tmp_path: Path) -> None:
    """A template sets only what differs; there is always one named `default`."""
    path = tmp_path / "config.toml"
    path.write_text(
        """
        [sandbox]
        memory = "1GiB"
        env = { TZ = "UTC" }
        [pool]
        min_size = 1
        [templates.big]
        memory = "8GiB"
        image = "mine"
        pool = { max_size = 2 }
        """
    )
    templates = load(path).templates
    assert sorted(templates) == ["big", "default", "strict"]  # for code that must be isolated
    default, big = templates["default"], templates["big"]
    assert (default.memory, big.memory) == (1024**3, 8 * 1024**3)
    assert (default.image, big.image) == (None, "mine")
    assert default.env == big.env == {"TZ": "UTC"}
    assert (default.pool.min_size, default.pool.max_size) == (1, default_pool_size())
    assert (big.pool.min_size, big.pool.max_size) == (1, 2)


def test_the_environment_can_add_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits are set key by key; an unknown key is named."""
    monkeypatch.setenv("KERNELBROKER_TENANTS__ACME__RATE", "3")
    monkeypatch.setenv("KERNELBROKER_TENANTS__ACME__TEMPLATES", '["default"]')
    tenant = load(None).tenants["acme"]
    assert (tenant.rate, tenant.templates) == (3, ("default",))
    monkeypatch.setenv("KERNELBROKER_TENANTS__ACME__RTE", "3")
    with pytest.raises(ConfigError, match=r"tenants\.acme\.rte"):
        load(None)


def test_the_environment_can_change_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a template can be set like all others."""
    monkeypatch.setenv("KERNELBROKER_TEMPLATES__BIG__POOL__MAX_SIZE", "7")
    assert load(None).templates["big"].pool.max_size == 7


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[templates.Big]", "templates.Big"),
        ("templates = 3", "templates"),
        ("[templates]\nbig = 3", "templates.big"),
        ("[templates.big]\npool = 3", "templates.big.pool"),
        ("[templates.big]\nmemry = 3", "templates.big.memry"),
        ("[templates.big.pool]\nsize = 3", "templates.big.pool.size"),
        ('[templates.big]\nnetwork = "all"', "templates.big.network"),
        ("sandbox = 3", "sandbox"),
    ],
)
def test_an_invalid_template_is_named(tmp_path: Path, text: str, named: str) -> None:
    """An invalid template is named by its key."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(named)):
        load(path)


def test_the_environment_can_change_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a tenant can be set like all others."""
    monkeypatch.setenv("KERNELBROKER_TENANTS__ACME__MAX_SESSIONS", "7")
    assert load(None).tenants["acme"].max_sessions == 7


def test_sections_may_be_objects() -> None:
    """Sections that a program passes as objects work like those of a file."""
    settings = Settings(
        sandbox=SandboxSettings(processes=50),
        pool=PoolSettings(min_size=1),
        templates={"big": {"pool": {"max_size": 2}}},
    )
    big = settings.templates["big"]
    assert (big.processes, big.pool.min_size, big.pool.max_size) == (50, 1, 2)
    assert settings.templates["default"].pool.min_size == 1


def test_profiles_of_templates(tmp_path: Path) -> None:
    """A profile replaces [sandbox], and a template's own keys replace those of its profile."""
    text = """
        [sandbox]
        cpus = 8
        processes = 50
        [templates.safe]
        profile = "strict"
        [templates.web]
        profile = "standard"
        memory = "1GiB"
    """
    templates = load(write(tmp_path, text)).templates
    safe, web = templates["safe"], templates["web"]
    assert (safe.network, safe.cpus, safe.memory) == ("none", 1, 2 * 1024**3)
    assert (safe.timeout, safe.file_size, safe.processes) == (120, 10 * 1024**2, 50)
    assert (web.network, web.cpus, web.memory) == ("allowlist", 2, 1024**3)
    assert (web.timeout, web.file_size) == (300, 10 * 1024**2)
    assert {"pypi.org", "registry.npmjs.org", "github.com"} <= set(web.allow)
    default = templates["default"]
    assert (default.cpus, default.timeout, default.file_size) == (8, None, None)


def test_backends_of_templates(tmp_path: Path) -> None:
    """A template has the backend that it names, and only backends that are used are made."""
    text = f"""
        state_dir = ""
        [local]
        kernel_python = "/usr/bin/python3"
        data_dir = "{tmp_path}/local"
        [docker]
        data_dir = "{tmp_path}/docker"
        runtime = "runc"
        [templates.box]
        backend = "docker"
        [templates.same]
        backend = "docker"
        runtime = "runc"
        [templates.guarded]
        backend = "docker"
        runtime = "runsc"
    """
    settings = load(write(tmp_path, text))
    names = {name: backend_name(settings, each) for name, each in settings.templates.items()}
    assert names == {
        "default": "local",
        "box": "docker",
        "same": "docker",
        "guarded": "docker-runsc",
    }
    backends = made_backends(settings)
    assert list(backends.by_name) == ["local", "docker", "docker-runsc"]
    directories = {backend.data_dir for backend in backends.by_name.values()}
    assert len(directories) == 3
    assert backends.data_dir == tmp_path / "local"
    only_local = load(write(tmp_path, '[local]\nkernel_python = "/usr/bin/python3"'))
    assert list(made_backends(only_local).by_name) == ["local"]
    only_docker = load(write(tmp_path, '[templates.default]\nbackend = "docker"'))
    assert list(made_backends(only_docker).by_name) == ["docker"]


def made_backends(settings: Settings) -> BackendSet:
    supervisor = Supervisor()
    return backends(settings, proxy(settings, Audit(None), None, supervisor), supervisor)


def test_settings_of_backends_that_contradict_each_other(tmp_path: Path) -> None:
    """A runtime without containers and a directory of two backends are refused."""
    with pytest.raises(ConfigError, match=r'templates\.x\.runtime needs backend = "docker"'):
        load(write(tmp_path, '[templates.x]\nruntime = "runsc"'))
    with pytest.raises(ConfigError, match=r"templates\.x\.profile"):
        load(write(tmp_path, '[templates.x]\nprofile = "lax"'))
    text = f'[templates.x]\nbackend = "docker"\n[local]\nkernel_python = "/p"\ndata_dir = "{tmp_path}"\n'
    settings = load(write(tmp_path, f'{text}[docker]\ndata_dir = "{tmp_path}"'))
    with pytest.raises(ConfigError, match="same directory"):
        made_backends(settings)


def test_the_profile_of_projects() -> None:
    """The profile `code` names its image, the hosts of packages, and all forges."""
    forge = {"host": "hub.example", "kind": "gitea", "token": SECRET, "repositories": ["a/*"]}
    settings = Settings(templates={"code": {"profile": "code"}}, code={"forges": [forge]})
    code = settings.templates["code"]
    assert code.image == "kernelbroker-code"
    assert "pypi.org" in code.allow
    made = spec("code", code, settings)
    assert made.upstreams == ("forge/hub.example",)
    assert made.uses_proxy
    assert "http://forge.internal/hub.example/" in str(made.env)
    assert SECRET not in repr(made)
    assert not spec("default", settings.templates["default"], settings).uses_proxy


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"code": {"roots": [{"path": "relative"}]}}, "absolute"),
        ({"code": {"roots": [{"path": "/a", "mode": "wr"}]}}, "mode"),
        ({"code": {"forges": [{"host": "a.b", "kind": "svn", "repositories": ["a/b"]}]}}, "kind"),
        (
            {"code": {"forges": [{"host": "a.b", "kind": "gitea", "repositories": []}]}},
            "repositories",
        ),
        (
            {"code": {"forges": [{"host": "a.b", "kind": "gitea", "repositories": ["a"]}]}},
            "repositories",
        ),
        ({"templates": {"x": {"forges": ["a.b"]}}}, "no forge"),
        ({"upstreams": {"forge": {"url": "http://a.b"}}}, "for code.forges"),
    ],
)
def test_projects_that_cannot_be_meant(values: dict[str, Any], told: str) -> None:
    """A mistake in a root or a forge is told with its key."""
    with pytest.raises(ValueError, match=told):
        Settings(**values)
