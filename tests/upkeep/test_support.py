"""The archive for support says what there is to know, and has no secret that was planted anywhere."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelbroker_server.sessions.database import Database
from kernelbroker_server.tenants.tokens import TokenFile
from kernelbroker_server.upkeep.redaction import REMOVED, Redactor

from tests.e2e.support import without_ours
from tests.support.requires import KERNEL_PYTHON

SETTINGS = """
token_file = "{directory}/token"
tokens_file = "{directory}/tokens.json"
metrics_token = "{metrics}"
log_file = "{directory}/broker.log"
port = 0

[local]
kernel_python = "{python}"
data_dir = "{directory}/data"
run_dir = "{directory}/run"

[sandbox.env]
DATABASE = "{environment}"

[templates.other.env]
OTHER = "{template}"

[packages]
index_url = "https://someone:{index}@pypi.example.org/simple"

[webhooks]
allowed_hosts = ["hooks.example.org"]
secret = "{webhook}"

[upstreams.model]
url = "https://api.example.org"
token = "{upstream}"

[upstreams.second]
url = "https://api.example.org"
token_file = "{directory}/upstream"

[[code.forges]]
host = "github.com"
kind = "github"
repositories = ["acme/*"]
token = "{forge}"
"""


@pytest.fixture
def planted() -> dict[str, str]:
    """A secret for each place."""
    places = "token metrics environment template index upstream second forge log runtime shell"
    found = {name: f"{name}-{secrets.token_hex(12)}" for name in places.split()}
    found["quoted"] = f'quo"te\\{secrets.token_hex(8)}'
    found["webhook"] = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name)


def test_the_archive_has_no_secret(directory: Path, planted: dict[str, str]) -> None:
    """No secret of settings, files, environment, log, tokens or stored code is in the archive."""
    config = directory / "broker.toml"
    config.write_text(SETTINGS.format(directory=directory, python=KERNEL_PYTHON, **planted))
    (directory / "token").write_text(f"{planted['token']}\n")
    (directory / "upstream").write_text(planted["second"])
    planted["tenant"] = TokenFile(directory / "tokens.json").create("acme")
    runtime = {"url": "http://127.0.0.1:9", "token": planted["runtime"], "pid": 1}
    (directory / "broker.json").write_text(json.dumps(runtime))
    state = directory / "data" / ".state"
    state.mkdir(parents=True, mode=0o700)
    Database(state / "store.sqlite3").close()
    lines = [f"INFO {name} {value}" for name, value in planted.items()]
    lines += [f"Authorization: Bearer {planted['log']}", json.dumps(planted), repr(planted)]
    planted["mysql"] = secrets.token_hex(10)  # known from nowhere
    lines += [f"cannot connect to mysql://root:{planted['mysql']}@db/x", "INFO a line to keep"]
    (directory / "broker.log").write_text("\n".join(lines))
    planted["key"] = secrets.token_hex(16)
    (state / "seal-key").write_text(planted["key"])
    environ = {
        "KERNELBROKER_CONFIG": str(config),
        "KERNELBROKER_RUNTIME_FILE": str(directory / "broker.json"),
        "ANTHROPIC_API_KEY": planted["shell"],
        "MY_PASSWORD": planted["quoted"],
        "LOGGED_TOKEN": planted["log"],
    }
    target = directory / "support.tar.gz"
    done = subprocess.run(
        [sys.executable, "-m", "kernelbroker.cli", "support", target],
        env=without_ours(os.environ) | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    texts = {}
    with tarfile.open(target) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.removeprefix("kernelbroker-support/")] = content.read().decode()
    for name, value in planted.items():
        for part, text in texts.items():
            assert value not in text, f"the secret {name} is in {part}"
            assert json.dumps(value)[1:-1] not in text, f"the secret {name} is in {part}"
    settings = json.loads(texts["settings.json"])
    assert settings["sandbox"]["env"] == {"DATABASE": REMOVED}
    assert settings["local"]["data_dir"] == f"{directory}/data"
    assert "INFO a line to keep" in texts["broker.log"]
    assert "certificates" in texts["doctor.txt"]
    assert "store.sqlite3" in texts["directories.txt"]
    assert "tornado " in texts["versions.txt"]
    assert "MemTotal" in texts["machine.txt"]
    assert "not collected" not in "".join(texts.values())


def test_wrong_settings_do_not_prevent_it(directory: Path) -> None:
    """With settings that cannot be used there is an archive all the same."""
    config = directory / "broker.toml"
    config.write_text("nonsense = 1")
    command = [sys.executable, "-m", "kernelbroker_server", "support", "--config", config]
    target = directory / "support.tar.gz"
    subprocess.run([*command, target], check=True, env=without_ours(os.environ))
    with tarfile.open(target) as archive:
        names = {each.rpartition("/")[2] for each in archive.getnames()}
    assert names == {"settings.txt", "versions.txt", "machine.txt", "environment.txt"}
    assert subprocess.run([*command, target], check=False, capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/path", f"https://{REMOVED}@host/path"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {REMOVED}"),
        (f"kb_0123456789ab_{'0' * 64}", REMOVED),
        (f"sk-ant-{'x' * 20} end", f"{REMOVED} end"),
        ("-----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\nok", f"{REMOVED}\nok"),
        ("port 8720 of 127.0.0.1; kb_short", "port 8720 of 127.0.0.1; kb_short"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, shown: str) -> None:
    """Tokens, passwords in URLs and private keys are removed although nobody has named them."""
    assert Redactor(None, {}).text(text) == shown
