"""Attacks on the files of a workspace: by paths, by planted files, by incomplete requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import kernelbroker
import pytest
from kernelbroker import BadRequest, Conflict, NotFound, TooLarge

from tests.backends.probes import BACKENDS
from tests.e2e.support import DEADLINE_S, BrokerProcess, until

pytestmark = pytest.mark.sandbox

LIMIT = 2 * 1024**2


@pytest.fixture(scope="module", params=BACKENDS)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker whose host has files that no request may touch."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        (directory / "shared").mkdir()
        (directory / "shared" / "common.txt").write_text("common")
        (directory / "shared").chmod(0o755)
        directory.chmod(0o755)
        broker = BrokerProcess(
            directory,
            BACKEND=request.param,
            LIMITS__FILE=LIMIT,
            SANDBOX__SHARED_DATA=directory / "shared",
        )
        with broker.running():
            yield broker


@pytest.fixture
async def session(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Session]:
    """A session that the module's tests share; what is outside of its workspace must stay as it was."""
    async with (
        kernelbroker.connect(broker.url, broker.token, timeout=DEADLINE_S) as client,
        client.session("files", keep=True) as session,
    ):
        before = outside(broker)
        yield session
        assert outside(broker) == before


def outside(broker: BrokerProcess) -> dict[str, str]:
    """The files around the workspaces on the host, except those that the broker itself changes."""
    root = broker.data_dir.parent
    own = {"broker.log", "sandboxes", ".state", ".workspaces"}
    found = [root.parent / "x", *root.glob("*"), *broker.data_dir.glob("*/*")]
    found += [*(root / "shared").iterdir(), Path("/etc/passwd"), Path("/etc/x")]
    states = {}
    for path in found:
        if path.exists() and own.isdisjoint(path.parts):
            status = path.stat()
            states[str(path)] = f"{status.st_size} {status.st_mtime_ns}" * path.is_file()
    return states


def workspace(broker: BrokerProcess) -> Path:
    """The directory on the host of the workspace that contains `mark`."""
    (mark,) = broker.data_dir.glob("*/sandboxes/*/workspace/mark")
    return mark.parent


async def ask(
    broker: BrokerProcess, method: str, path: str, body: bytes | None = None
) -> tuple[int, Any]:
    """Send a request with the path as given. Returns status and JSON."""
    parts = urlsplit(broker.url)

    def work() -> tuple[int, Any]:
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=DEADLINE_S
        )
        try:
            headers = {"Authorization": f"Bearer {broker.token}"}
            connection.request(method, f"/api/v1/sessions/files/files{path}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = text and answer.headers.get("Content-Type") == "application/json"
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    return await asyncio.to_thread(work)


async def run(session: kernelbroker.Session, code: str) -> Any:
    """Run a cell that must succeed; returns its `value`."""
    result = await session.run(code, result_var="value")
    result.raise_for_error()
    return result.return_value


OUT = [
    "..",
    "../x",
    "a/../../x",
    "a/../b",
    "%2e%2e",
    "%2e%2e/x",
    "..%2fx",
    "..%2Fx",
    "%2E%2E%2Fx",
    "a/%2e%2e/%2e%2e/x",
    "a%2f..%2f..%2fx",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "/data/x",
    "a%00b",
    "%00",
    "..%00",
    "x" * 5000,
]


@pytest.mark.parametrize("path", OUT)
async def test_paths_out_of_the_workspace(
    broker: BrokerProcess, session: kernelbroker.Session, path: str
) -> None:
    """A path that leads out, however it is written, is refused by every call."""
    await session.files.write("here", "x")
    calls = [
        ("GET", f"/{path}", None),
        ("HEAD", f"/{path}", None),
        ("PUT", f"/{path}", b"attack"),
        ("DELETE", f"/{path}?recursive=true", None),
        ("POST", f"/{path}?op=mkdir", None),
        ("POST", f"/{path}?op=move&to=there", None),
        ("POST", f"/here?op=move&to={path}", None),
        ("GET", f"?path={path}", None),
    ]
    for method, target, body in calls:
        status, answer = await ask(broker, method, target, body)
        assert status == 400, (method, target, answer)
    assert await session.files.exists("here")


@pytest.mark.parametrize(
    "path",
    ["%252e%252e%252fx", "..%5cx", "%5c%5cetc", "...", ".%20.", "%c0%ae%c0%ae%2fx", "%uff0e"],
)
async def test_unusual_names_are_ordinary_names(
    broker: BrokerProcess, session: kernelbroker.Session, path: str
) -> None:
    """A path that is no traversal after decoding it once is an ordinary name."""
    assert await ask(broker, "PUT", f"/odd/{path}", b"content") == (204, b"")
    assert await ask(broker, "GET", f"/odd/{path}") == (200, b"content")
    await session.files.delete("odd", recursive=True)


NAMES = [
    "with space and +plus",
    "100%.csv",
    "a?b#c&d=e;f",
    "quotes \"and\" 'these'",
    "new\nline\ttab\r\x01\x7f",
    "汉" * 85,  # 255 bytes
    "Ünïcödé",
    "مرحبا",
    "👩‍👩‍👧",
    "-rf",
    "~",
    "$(touch x)",
    "\udcff\udcfe",  # bytes that are no UTF-8
    "<script>.html",
    "data:te\nxt;x,y",
]


@pytest.mark.parametrize("name", NAMES)
async def test_any_file_name_works(session: kernelbroker.Session, name: str) -> None:
    """Any name that the file system accepts can be written, listed, moved, read and deleted."""
    files = session.files
    await files.write(f"names/{name}/{name}", "content")
    assert await files.read_text(f"names/{name}/{name}") == "content"
    assert [f.path for f in await files.list(f"names/{name}")] == [f"names/{name}/{name}"]
    raw = list(name.encode("utf-8", "surrogateescape"))
    seen = await run(
        session, f"import os; value = os.listdir(b'names/' + bytes({raw})) == [bytes({raw})]"
    )
    assert seen is True
    await files.move(f"names/{name}/{name}", "names/moved")
    assert await files.read("names/moved") == b"content"
    await files.delete("names", recursive=True)
    assert not await files.exists("names")


async def test_names_that_are_too_long(session: kernelbroker.Session) -> None:
    """A name of more than 255 bytes is refused at every position of a path."""
    long, files = "汉" * 86, session.files
    await files.write("short", "")
    with pytest.raises(BadRequest, match="too long"):
        await files.write(long, "x")
    with pytest.raises(BadRequest, match="too long"):
        await files.read(long)
    with pytest.raises(BadRequest, match="too long"):
        await files.mkdir(f"a/{long}")
    with pytest.raises(BadRequest, match="too long"):
        await files.move("short", long)
    with pytest.raises(BadRequest, match="surrogate"):
        await files.read("\ud800")


async def test_links_are_not_followed(session: kernelbroker.Session) -> None:
    """A link is listed and removed as a link, and is not followed."""
    await run(
        session,
        """
import os
os.makedirs("l/real")
open("l/real/file", "w").write("inside")
for name, target in {"passwd": "/etc/passwd", "etc": "/etc", "up": "..", "loop": "loop",
                     "dangling": "nowhere", "near": "real/file", "dir": "real",
                     "gateway": "/proc/1/root"}.items():
    os.symlink(target, f"l/{name}")
value = 1
""",
    )
    files = session.files
    links = ["passwd", "etc", "up", "loop", "dangling", "near", "dir", "gateway"]
    for name in links:
        with pytest.raises(Conflict, match="link"):
            await files.read(f"l/{name}")
        with pytest.raises(Conflict, match="link"):
            await files.write(f"l/{name}/x", "attack")
        with pytest.raises(Conflict, match="link"):
            await files.read(f"l/{name}/passwd")
        with pytest.raises(Conflict, match="link"):
            await files.mkdir(f"l/{name}")
        with pytest.raises(Conflict, match="link"):
            await files.move("l/real/file", f"l/{name}/x")
        (entry,) = await files.list(f"l/{name}")
        assert entry.kind == "symlink"
    listed = await files.list("l", recursive=True)
    assert sorted(f.path for f in listed) == sorted(
        ["l/real", "l/real/file", *(f"l/{name}" for name in links)]
    )
    await files.write("l/near", "a file now")  # in place of the link
    assert await files.read("l/real/file") == b"inside"
    assert await files.read("l/near") == b"a file now"
    await files.delete("l/dir", recursive=True)  # the link, not what it leads to
    assert await files.exists("l/real/file")
    await files.delete("l", recursive=True)
    assert await run(session, "value = os.path.exists('/etc/passwd')")


async def test_pipes_and_sockets_are_refused(session: kernelbroker.Session) -> None:
    """Pipes and sockets are refused at once."""
    await run(
        session,
        """
import os, socket
os.mkdir("s")
os.mkfifo("s/pipe")
listener = socket.socket(socket.AF_UNIX); listener.bind("s/socket")
value = 1
""",
    )
    files = session.files
    assert [f.kind for f in await files.list("s")] == ["other", "other"]
    for name in ("pipe", "socket"):
        async with asyncio.timeout(DEADLINE_S / 2):
            with pytest.raises(Conflict, match="not a regular"):
                await files.read(f"s/{name}")
        await files.write(f"s/{name}", "replaced")
        assert await files.read(f"s/{name}") == b"replaced"
    await files.delete("s", recursive=True)


async def test_files_and_directories_in_each_others_place(session: kernelbroker.Session) -> None:
    """A file in place of a directory, or the reverse, is refused with the reason."""
    files = session.files
    await files.write("k/file", "x")
    await files.mkdir("k/directory/below")
    for attempt, error in [
        (files.read("k/directory"), Conflict),
        (files.write("k/directory", "x"), Conflict),
        (files.write("k/file/below", "x"), Conflict),
        (files.read("k/file/below"), Conflict),
        (files.mkdir("k/file"), Conflict),
        (files.move("k/file", "k/directory"), Conflict),
        (files.move("k/directory", "k/directory/below/x"), BadRequest),
        (files.move("k/absent", "k/x"), NotFound),
        (files.delete("k/directory"), Conflict),
        (files.delete("k/absent"), NotFound),
        (files.delete(""), BadRequest),
        (files.delete(".", recursive=True), BadRequest),
        (files.write("", "x"), Conflict),
        (files.list("k/absent"), NotFound),
    ]:
        with pytest.raises(error) as caught:
            await attempt
        assert caught.value.message
    await run(session, "import os; os.chmod('k/file', 0); value = 1")
    with pytest.raises(Conflict, match="permissions"):
        await files.read("k/file")
    await files.write("k/file", "over it")  # it is the directory that is written to
    await files.delete("k", recursive=True)


async def test_long_listings_are_cut(session: kernelbroker.Session) -> None:
    """Thousands of entries are listed in order; a listing over the limit is cut, and says so."""
    files = session.files
    await run(
        session,
        """
import os
os.mkdir("many")
for n in range(5000): open(f"many/{n:05}", "w").close()
value = 1
""",
    )
    listed = await files.list("many")
    assert ([f.path for f in listed], listed.truncated) == (
        [f"many/{n:05}" for n in range(5000)],
        False,
    )
    await run(session, "for n in range(5000, 10500): open(f'many/{n:05}', 'w').close()")
    listed = await files.list("many")
    assert (len(listed), listed.truncated) == (10_000, True)
    await files.delete("many", recursive=True)
    assert not await files.exists("many")


async def test_a_deep_tree_can_be_deleted(session: kernelbroker.Session) -> None:
    """A tree deeper than any path is listed as far as possible, and deleted completely."""
    await run(
        session,
        """
import os
here = os.getcwd()
for n in range(3000): os.mkdir("deep"); os.chdir("deep")
os.chdir(here)
value = 1
""",
    )
    listed = await session.files.list(recursive=True)
    assert listed.truncated
    await session.files.delete("deep", recursive=True)
    assert not await session.files.exists("deep")


async def test_directories_swapped_during_a_walk(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """Directories that become links during a walk are not followed."""
    files = session.files
    swapping = asyncio.create_task(
        session.run(
            """
import os, shutil, time
os.makedirs("race/d", exist_ok=True)
end = time.time() + 20
while not os.path.exists("race/stop") and time.time() < end:
    try:
        os.rename("race/d", "race/hidden")
        os.symlink("/etc", "race/d")
        os.unlink("race/d")
        os.rename("race/hidden", "race/d")
    except OSError:  # an upload made the directory anew
        shutil.rmtree("race/hidden", ignore_errors=True)
"""
        )
    )
    await until(lambda: files.exists("race/d"))
    for number in range(150):
        for attempt in (
            files.write(f"race/d/x{number % 3}", b"attack" * 1000),
            files.read("race/d/passwd"),
            files.move(f"race/d/x{number % 3}", "race/d/shadow"),
        ):
            try:
                content = await attempt
            except (Conflict, NotFound, BadRequest):
                continue
            assert content is None, "it read what is not in the workspace"
    await files.write("race/stop", "")
    (await swapping).raise_for_error()
    await files.delete("race", recursive=True)


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_incomplete_upload_leaves_nothing(
    broker: BrokerProcess, session: kernelbroker.Session, chunked: bool
) -> None:
    """An incomplete upload leaves nothing, and the old file stays."""
    files = session.files
    await files.write("mark", "before")
    before = [f.path for f in await files.list(recursive=True)]
    parts = urlsplit(broker.url)
    for target in ("mark", "new"):
        framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000000"
        head = f"PUT /api/v1/sessions/files/files/{target} HTTP/1.1\r\nHost: x\r\n{framing}\r\n"
        head += f"Authorization: Bearer {broker.token}\r\n\r\n"
        body = b"7a120\r\n" * chunked + b"x" * 500_000
        with socket.create_connection((parts.hostname, parts.port)) as client:
            await asyncio.to_thread(client.sendall, head.encode() + body)

    async def settled() -> bool:
        info = await ask(broker, "GET", "?recursive=true")
        names = {entry["path"] for entry in info[1]["entries"]}
        on_host = {path.name for path in workspace(broker).iterdir()}
        return names == set(before) and not any(name.startswith(".") for name in on_host)

    await until(settled)
    assert await files.read("mark") == b"before"


async def test_the_shared_directory_is_read_only(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """Shared files can be read, and cannot be changed."""
    files = session.files
    assert await files.read("shared/common.txt") == b"common"
    attempts: list[Callable[[], Any]] = [
        lambda: files.write("shared/new", "x"),
        lambda: files.write("shared/common.txt", "x"),
        lambda: files.mkdir("shared/new"),
        lambda: files.delete("shared/common.txt"),
        lambda: files.delete("shared", recursive=True),
        lambda: files.move("shared/common.txt", "mine"),
        lambda: files.move("shared", "mine"),
    ]
    for attempt in attempts:
        with pytest.raises(Conflict):
            await attempt()
    with pytest.raises(Conflict, match="read-only"):
        await files.write("shared/new", "x")


async def test_uploads_over_the_limit_are_refused(session: kernelbroker.Session) -> None:
    """A file over `limits.file` is refused, with or without a length; one at the limit is not."""
    files = session.files

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 2**16):
            yield bytes(2**16)

    for whole in (True, False):
        await files.write("limit", bytes(LIMIT) if whole else pieces(LIMIT))
        (entry,) = await files.list("limit")
        assert entry.size == LIMIT
        with pytest.raises(TooLarge, match=f"{LIMIT:,}"):
            await files.write("over", bytes(LIMIT + 1) if whole else pieces(20 * LIMIT))
        assert not await files.exists("over")
    await files.delete("limit")


async def test_downloads_are_never_rendered(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """No browser renders a cell's file under the broker's address."""
    await session.files.write("page.html", "<script>alert(1)</script>")
    parts = urlsplit(broker.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_S)
    path = f"/api/v1/sessions/files/files/{quote('page.html')}"
    connection.request("GET", path, headers={"Authorization": f"Bearer {broker.token}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.headers["Content-Disposition"] == "attachment"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox"
    assert answer.headers["Content-Type"] == "text/html"


async def test_other_sessions_and_clients_have_no_access(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """Without the token, or with another session, a workspace cannot be accessed."""
    await session.files.write("mine", "x")
    async with kernelbroker.connect(broker.url, "wrong") as stranger:
        with pytest.raises(kernelbroker.KernelBrokerError):
            await stranger.session("files", keep=True).files.read("mine")
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as other,
    ):
        with pytest.raises(NotFound):
            await other.files.read("mine")
    status, _ = await ask(broker, "GET", "/../../nobody/files/mine")
    assert status == 400
