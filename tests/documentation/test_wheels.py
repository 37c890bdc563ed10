"""The wheel of the SDK that a broker serves."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import kernelbroker
import pytest
from kernelbroker_server.documentation import sdk_wheel
from kernelbroker_server.documentation.handler import documentation_routes

from tests.support.backend import spotless_backend
from tests.support.http import serving
from tests.support.world import world


def test_it_has_all_files_once() -> None:
    """The files of the package, its metadata and licence, and the digest of each."""
    with zipfile.ZipFile(io.BytesIO(sdk_wheel.wheel())) as archive:
        names = archive.namelist()
        assert len(names) == len({*names}) and archive.testzip() is None
        package = Path(kernelbroker.__file__).parent
        wanted = {f"kernelbroker/{path.relative_to(package)}" for path in package.rglob("*.py")}
        assert wanted <= {*names} and "kernelbroker/py.typed" in names
        information = f"{sdk_wheel.file_name().removesuffix('-py3-none-any.whl')}.dist-info"
        assert b"Apache License" in archive.read(f"{information}/licenses/LICENSE")
        record = archive.read(f"{information}/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == names


async def test_pip_installs_it_from_a_broker(tmp_path: Path) -> None:
    """By its address and by the page that lists it, without a token. Another name is told what there is."""
    routes = documentation_routes(tmp_path)
    async with (
        spotless_backend() as backend,
        world(backend) as w,
        serving(w, surfaces=routes) as api,
    ):
        wheels = f"http://127.0.0.1:{api.port}/docs/wheels/"
        by_page = ["kernelbroker", "--no-index", "--find-links", wheels]
        for words in (by_page, [wheels + sdk_wheel.file_name()]):
            target = tmp_path / str(len(words))
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                target,
            ]
            ran = await asyncio.to_thread(
                subprocess.run, [*pip, *words], capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stderr
            code = "import kernelbroker, kernelbroker.cli; print(kernelbroker.__file__)"
            seen = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", code],
                env={"PYTHONPATH": str(target)},
                capture_output=True,
                text=True,
                check=True,
            )
            assert seen.stdout.startswith(str(target))
        with pytest.raises(HTTPError) as refused:
            await asyncio.to_thread(urlopen, f"{wheels}other-1.0.whl")
        with refused.value as answer:
            assert answer.code == 404 and sdk_wheel.file_name().encode() in answer.read()
