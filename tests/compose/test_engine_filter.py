"""The filter in front of a real engine: calls of the broker work, all others are refused."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, DockerException, NotFound
from kernelbroker_server.backends.base import EndCause, SandboxSpec

from tests.backends.probes import ask, containers_of, end, running_docker, tell
from tests.compose.support import ROOT, containers, engine_socket, until
from tests.support.requires import IMAGE, engine

pytestmark = containers

OTHER = f"kernelbroker-test-other-{os.getpid()}"


class Filter:
    """One filter process, and the address where it listens."""

    def __init__(self, directory: Path, engine: Path) -> None:
        self.data, self.run = directory / "data", directory / "run"
        self.shared = directory / "shared"
        self.socket = directory / "filtered.sock"
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "compose.engine_filter", f"--image={IMAGE}"),
                    *(f"--data-dir={self.data}", f"--run-dir={self.run}"),
                    *(f"--shared={self.shared}", f"--engine={engine}", f"--listen={self.socket}"),
                ],
                cwd=ROOT,
                stderr=log,
            )
        until(self.socket.exists, "the filter's socket")

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(30) == 0
        assert not self.socket.exists()
        assert "Traceback" not in self.log.read_text()


@contextmanager
def running(engine: Path) -> Iterator[Filter]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        running = Filter(Path(directory), engine)
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def filtered() -> Iterator[Filter]:
    with running(engine_socket()) as filtered:
        yield filtered


@pytest.fixture
def api(filtered: Filter) -> Iterator[Any]:
    """What a broker that was taken over has of the engine."""
    api = docker.APIClient(filtered.host, version="1.41")
    yield api
    api.close()


async def test_a_backend_works_behind_the_filter(filtered: Filter) -> None:
    """A backend launches sandboxes through the filter, and removes those of a dead broker."""
    filtered.shared.mkdir()
    labels = {"kernelbroker.data": str(filtered.data), "kernelbroker.broker": "0123abcd"}
    with engine() as whole:
        image = whole.inspect_image(IMAGE)["Id"]
        left = whole.create_container(
            image, name=f"kernelbroker-0123abcd-{os.getpid()}", labels=labels
        )
        try:
            async with running_docker(
                host=filtered.host, data_dir=filtered.data, run_dir=filtered.run
            ) as backend:
                assert containers_of(filtered.data) == []
                spec = SandboxSpec(shared_data=filtered.shared)
                sandbox = await backend.launch("one", spec)
                assert await ask(sandbox, "result = 6 * 7") == 42
                await tell(sandbox, "os._exit(7)")
                assert (await end(sandbox)).cause is EndCause.KERNEL_DIED  # reported by an event
        finally:
            with contextlib.suppress(NotFound):
                whole.remove_container(left["Id"])


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.create_container(IMAGE, name="other"),
        lambda api: api.create_container(
            IMAGE,
            name="kernelbroker-0123abcd-x",
            host_config=api.create_host_config(privileged=True, binds=["/:/host"]),
        ),
        lambda api: api.containers(all=True),
        lambda api: api.exec_create("kernelbroker-0123abcd-x", "id"),
        lambda api: api.pull("busybox"),
        lambda api: api._raise_for_status(api._post(api._url("/build"))),
        lambda api: api.import_image_from_data(b"", repository="kernelbroker-test-evil"),
        lambda api: api.images(),
        lambda api: api.create_volume("kernelbroker-test-evil"),
        lambda api: api.create_network("kernelbroker-test-evil"),
        lambda api: api.init_swarm(),
        lambda api: api.prune_containers(),
        lambda api: api._raise_for_status(api._get(api._url("/events"))),
        lambda api: api.put_archive("kernelbroker-0123abcd-x", "/", b""),
    ],
)
def test_other_calls_are_refused(api: Any, call: Callable[[Any], object]) -> None:
    """Calls that the broker does not need never reach the engine."""
    with pytest.raises(
        (APIError, DockerException), match="refused by kernelbroker's engine filter"
    ):
        call(api)


def test_other_containers_are_hidden(api: Any) -> None:
    """Containers that are no sandboxes can be neither inspected nor ended."""
    with engine() as whole:
        other = whole.create_container(whole.inspect_image(IMAGE)["Id"], name=OTHER)
        try:
            for call in (api.inspect_container, api.remove_container, api.start, api.logs):
                for name in (OTHER, other["Id"]):
                    with pytest.raises(APIError, match="refused by"):
                        call(name)
        finally:
            whole.remove_container(other["Id"])


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1.41/containers/kernelbroker-0123abcd-x/attach HTTP/1.1\r\nHost: x\r\n"
        b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
        # Two lengths, or a length and chunks: what one server takes for a body is a request to the next.
        b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\n"
        b"GET /images/json HTTP/1.1\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
        b"0\r\n\r\nGET /images/json HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/version HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /version\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_ambiguous_requests_are_refused(filtered: Filter, request_: bytes) -> None:
    """Ambiguous requests are not passed on."""
    answer = _answer(filtered, request_)
    assert b" 200 " not in answer
    assert b"RepoTags" not in answer


def test_a_second_request_behind_the_first(filtered: Filter) -> None:
    """The engine gets one request of a connection, and no later byte."""
    answer = _answer(
        filtered,
        b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /images/json HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"ApiVersion" in answer
    assert b"RepoTags" not in answer


def test_a_missing_engine_is_reported() -> None:
    """If no engine listens, the broker gets an error."""
    with running(Path("/nonexistent/docker.sock")) as filtered:
        answer = _answer(filtered, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", ends=False)
        assert b" 502 " in answer
        assert b"cannot be reached" in answer


def _answer(filtered: Filter, request: bytes, *, ends: bool = True) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(filtered.socket))
        client.sendall(request)
        if ends:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
            if not ends and b"\r\n\r\n" in answer and answer.endswith(b"}"):
                break
        return answer
