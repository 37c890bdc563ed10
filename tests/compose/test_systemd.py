"""The unit for systemd is one, and fits the settings that come with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kernelbroker_server.config_file import load

from tests.support.requires import requires

UNITS = Path(__file__).parents[2] / "compose" / "systemd"
INSTALLED = "/opt/kernelbroker/.venv/bin"


@requires("systemd")
def test_the_units_are_valid(tmp_path: Path) -> None:
    """systemd knows each key of the units, and what they start exists."""
    for unit in UNITS.glob("kernelbroker*"):
        text = unit.read_text().replace(INSTALLED, str(Path(sys.executable).parent))
        (tmp_path / unit.name).write_text(text.replace(" docker.service", ""))
    names = sorted(path for path in tmp_path.iterdir() if path.suffix != ".toml")
    assert len(names) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *names],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_makes_the_directories_of_the_settings() -> None:
    """The settings are valid, and their files are in directories that systemd makes for the broker."""
    unit = (UNITS / "kernelbroker.service").read_text()
    made = {
        f"/{place}/kernelbroker"
        for key, place in {
            "ConfigurationDirectory": "etc",
            "StateDirectory": "var/lib",
            "RuntimeDirectory": "run",
            "LogsDirectory": "var/log",
        }.items()
        if f"{key}=kernelbroker\n" in unit
    }
    settings = load(UNITS / "broker.toml")
    own = settings.local, settings.docker
    paths = [settings.token_file, settings.log_file, settings.audit_log]
    paths += [path for each in own for path in (each.data_dir, each.run_dir)]
    for path in paths:
        assert path is not None
        assert any(path.is_relative_to(each) for each in made), path
    assert re.search("--config (.+)", unit)[1] == "/etc/kernelbroker/broker.toml"  # type: ignore[index]
    assert settings.local.require_isolation
    assert "KillMode=process" in unit
