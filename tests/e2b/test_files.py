"""Files of a sandbox, through E2B's own clients."""

from __future__ import annotations

from tests.e2b.support import E2bClients
from tests.e2e.support import whole_system

pytestmark = whole_system


def test_files_are_written_read_and_described(e2b: E2bClients) -> None:
    """Text, bytes and streams are written to the home directory, which is the workspace, and read again."""
    written, text, raw, streamed, info, from_cell, listed = e2b.python("""
        import io
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            files = sandbox.files
            written = files.write("a/b.txt", "hällo")
            files.write("/home/user/raw.bin", bytes(range(256)))
            files.write("big", io.BytesIO(b"x" * 3_000_000))
            files.write("packed", io.BytesIO(b"y" * 300_000), gzip=True)
            files.write_files([dict(path="c/1", data="one"), dict(path="~/c/2", data=b"two")])
            info = files.get_info("a/b.txt")
            report(
                [written.name, written.path, written.type.value],
                files.read("/data/a/b.txt"),
                list(files.read("raw.bin", format="bytes")) == list(range(256)),
                [sum(map(len, files.read("big", format="stream"))), len(files.read("packed"))],
                [info.name, info.type.value, info.path, info.size, oct(info.mode), info.permissions,
                 info.owner, info.group, info.symlink_target, info.modified_time.year > 2000],
                sandbox.run_code("open('a/b.txt').read() + open('/data/c/2').read()").text,
                sorted((e.path, e.type.value) for e in files.list("/home/user", depth=2)),
            )
    """)
    assert written == ["b.txt", "/home/user/a/b.txt", "file"]
    assert (text, raw, streamed) == ("hällo", True, [3_000_000, 300_000])
    assert info == [
        *("b.txt", "file", "/home/user/a/b.txt", 6, "0o644", "-rw-r--r--"),
        *("user", "user", None, True),
    ]
    assert from_cell == "hällotwo"
    assert listed == [
        ["/home/user/a", "dir"],
        ["/home/user/a/b.txt", "file"],
        ["/home/user/big", "file"],
        ["/home/user/c", "dir"],
        ["/home/user/c/1", "file"],
        ["/home/user/c/2", "file"],
        ["/home/user/packed", "file"],
        ["/home/user/raw.bin", "file"],
    ]


def test_files_have_metadata(e2b: E2bClients) -> None:
    """Texts that are sent with a file stay with it, in both forms of an upload, until it is replaced."""
    written, seen, moved, replaced, by_cell, errors = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            files, metadata = sandbox.files, {"Author": "me", "purpose": "a test"}
            written = [files.write("a", "1", metadata=metadata).metadata,
                       files.write("b", "1", metadata=metadata, use_octet_stream=True).metadata,
                       files.write("plain", "1").metadata]
            seen = [files.get_info(name).metadata for name in ("a", "b", "plain")]
            seen += [entry.metadata for entry in files.list("/home/user")][:2]
            moved = files.rename("a", "c").metadata
            replaced = [files.write("c", "2").metadata, files.get_info("c").metadata]
            sandbox.run_code("import os; os.setxattr('c', 'user.e2b.author', b'a cell')")
            by_cell = files.get_info("c").metadata
            large = kind_of(files.write, "d", "x", metadata={"key": "x" * 60_000})
            report(written, seen, moved, replaced, by_cell, [large, files.exists("d")])
    """)
    metadata = {"author": "me", "purpose": "a test"}
    assert written == [metadata, metadata, None]
    assert seen == [metadata, metadata, None, metadata, metadata]
    assert (moved, replaced, by_cell) == (metadata, [None, None], {"author": "a cell"})
    assert errors[0] is not None and errors[1] is False, errors


def test_directories_are_made_moved_and_removed(e2b: E2bClients) -> None:
    """`make_dir` says whether it made something; what is moved or removed is gone; errors are E2B's."""
    made, moved, gone, errors = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            files = sandbox.files
            made = [files.make_dir("x/y"), files.make_dir("x/y"), files.exists("x"), files.exists("no")]
            files.write("x/y/f", "1")
            moved = files.rename("x/y/f", "z/g").path
            gone = [files.exists("x/y/f"), files.read("z/g")]
            files.remove("x")
            files.remove("x")
            gone.append(files.exists("x"))
            report(made, moved, gone, [
                kind_of(files.read, "no"), kind_of(files.list, "no"), kind_of(files.get_info, "no"),
                kind_of(files.rename, "no", "b"),
                kind_of(files.list, "z/g"), kind_of(files.write, "z", "1"),
                kind_of(files.read, "z"), kind_of(files.make_dir, "z/g"),
                kind_of(files.write, "a", "1", user="root"), kind_of(files.list, "/", user="root"),
                kind_of(files.remove, "/home/user"), kind_of(files.read, "a" * 5000),
            ])
    """)
    assert made == [True, False, True, False]
    assert (moved, gone) == ("/home/user/z/g", [False, "1", False])
    kinds = [kind for kind, _ in errors]
    assert kinds[:4] == ["FileNotFoundException"] * 4
    assert set(kinds[4:]) == {"InvalidArgumentException"}
    assert "without the rights of root" in errors[8][1]
    assert "without the rights of root" in errors[9][1]


def test_other_directories_are_those_of_the_sandbox(e2b: E2bClients) -> None:
    """Other absolute paths are those of the sandbox's own file system, as far as it allows them."""
    read, hosts, link, errors = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            files = sandbox.files
            files.write("/tmp/deep/er/f", "tmp")
            read = [files.read("/tmp/deep/er/f"), sandbox.run_code("open('/tmp/deep/er/f').read()").text]
            files.remove("/tmp/deep")
            read.append(files.exists("/tmp/deep"))
            sandbox.run_code("import os; os.symlink('/tmp', 'way'); os.symlink('gone', 'broken')")
            sandbox.run_code("os.symlink('a/file', 'near'); os.mkdir('a'); open('a/file', 'w').close()")
            near = files.get_info("near").symlink_target
            info = files.get_info("way")
            report(
                read, files.read("/etc/hosts").splitlines()[0],
                [info.type.value, info.symlink_target, near],
                [
                    kind_of(files.write, "/etc/hosts", "x"), kind_of(files.read, "/etc/shadow"),
                    kind_of(files.read, "/proc/self/environ"), kind_of(files.read, "way/../../etc/x"),
                    kind_of(files.write, "way/f", "x"), kind_of(files.read, "/dev/zero"),
                    kind_of(files.rename, "/etc/hosts", "hosts"),
                ],
            )
    """)
    assert read == ["tmp", "tmp", False]
    assert "localhost" in hosts
    assert link == ["symlink", "/tmp", "/home/user/a/file"]
    assert {kind for kind, _ in errors} <= {"InvalidArgumentException", "FileNotFoundException"}
    assert all(errors)
    assert "/etc/hosts: it is read-only" in errors[0][1] and "/tmp can be written" in errors[0][1]


def test_urls_are_signed(e2b: E2bClients) -> None:
    """A URL of a secure sandbox uploads or downloads one file, without a token, until it expires."""
    answers, text = e2b.python("""
        import urllib.error, urllib.request
        from e2b_code_interpreter import Sandbox
        def fetch(url, data=None, kind=None):
            headers = {} if kind is None else {"Content-Type": kind}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
                    return [answer.status, answer.read().decode()]
            except urllib.error.HTTPError as error:
                return [error.code, ""]
        head = b'Content-Disposition: form-data; name="file"; filename="n"'
        form = b"--b\\r\\n" + head + b"\\r\\n\\r\\nup\\r\\n--b--\\r\\n"
        with Sandbox.create(secure=True) as sandbox:
            up = sandbox.upload_url("u.txt")
            down = sandbox.download_url("u.txt", use_signature_expiration=60)
            report(
                [
                    fetch(up, form, "multipart/form-data; boundary=b"), fetch(down),
                    fetch(down.replace("u.txt", "other")), fetch(up), fetch(down, form),
                    fetch(sandbox.download_url("u.txt", use_signature_expiration=-5)),
                    fetch(down.replace("v1_", "v1_x")),
                ],
                sandbox.files.read("u.txt"),
            )
    """)
    upload, download, *refused = answers
    assert upload[0] == 200 and '"/home/user/u.txt"' in upload[1]
    assert (download, text) == ([200, "up"], "up")
    assert [status for status, _ in refused] == [401] * 5


def test_changes_of_a_directory_are_watched(e2b: E2bClients) -> None:
    """The synchronous client polls for changes; the asynchronous one gets them as they happen."""
    polled, streamed, errors, counts = e2b.python("""
        import asyncio, time
        from e2b_code_interpreter import AsyncSandbox, Sandbox
        def until(done):
            for _ in range(200):
                if done():
                    return
                time.sleep(0.05)
        sandbox = Sandbox.create()
        files = sandbox.files
        files.write("w/deep/old", "1")
        watch = files.watch_dir("w", recursive=True)
        files.write("w/deep/old", "2")
        files.write("w/f", "1")
        files.write("w/deep/g", "2")
        files.rename("w/f", "w/h")
        files.remove("w/deep/g")
        got = []
        until(lambda: got.extend([e.name, e.type.value] for e in watch.get_new_events()) or
              ["deep/g", "remove"] in got)
        watch.get_new_events()
        counts = []
        for write in (
            lambda: files.write("w/new", "1"), lambda: files.write("w/new", "2"),
            lambda: files.make_dir("w/many/at/once"), lambda: files.write("w/more/at/once", "3"),
            lambda: files.write("w/more/at/once", "4"), lambda: files.rename("w/new", "w/other"),
        ):
            write()
            counts.append([[e.name, e.type.value] for e in watch.get_new_events()])
        watch.stop()
        networks = files.watch_dir("w", include_entry=True, allow_network_mounts=True)
        files.write("w/described", "four")
        counts.append([e.entry and e.entry.size for e in networks.get_new_events()])
        networks.stop()
        errors = [kind_of(watch.get_new_events), kind_of(files.watch_dir, "no"),
                  kind_of(files.watch_dir, "w/h")]
        async def main():
            live = await AsyncSandbox.create()
            await live.files.make_dir("w")
            seen, happened = [], asyncio.Event()
            def on_event(event):
                seen.append([event.name, event.type.value])
                happened.set()
            handle = await live.files.watch_dir("w", on_event=on_event)
            await live.files.write("w/live", "1")
            async with asyncio.timeout(20):
                await happened.wait()
            await handle.stop()
            await live.kill()
            return seen
        seen = asyncio.run(main())
        sandbox.kill()
        report(got, seen, errors, counts)
    """)
    assert polled[0] == ["deep/old", "write"], "it was there, and is written"
    assert ["f", "create"] in polled and ["deep/g", "create"] in polled
    assert (
        ["f", "rename"] in polled and ["h", "create"] in polled and ["deep/g", "remove"] in polled
    )
    assert streamed[0] == ["live", "create"]
    # They are there when the write has been answered.
    assert counts == [
        [["new", "create"], ["new", "chmod"], ["new", "write"]],
        [["new", "write"]],
        [["many", "create"], ["many/at", "create"], ["many/at/once", "create"]],
        [
            *(["more", "create"], ["more/at", "create"]),
            *[["more/at/once", kind] for kind in ("create", "chmod", "write")],
        ],
        [["more/at/once", "write"]],
        [["new", "rename"], ["other", "create"]],
        [4, 4, 4],
    ]
    assert [kind for kind, _ in errors] == [
        *("SandboxException", "FileNotFoundException", "InvalidArgumentException"),
    ]


def test_the_javascript_client_uses_files(e2b: E2bClients) -> None:
    """Files of npm's client: written, read as text, bytes and stream, listed, watched, removed."""
    written, text, size, names, seen, left = e2b.node("""
        import { Sandbox } from '@e2b/code-interpreter'
        const sandbox = await Sandbox.create()
        const written = await sandbox.files.write('d/a.txt', 'eins')
        const blob = new Blob(['x'.repeat(9)])
        await sandbox.files.write([{path: 'd/b', data: 'zwei'}, {path: 'd/c', data: blob}])
        const seen = []
        const happened = new Promise((resolve) => {
            sandbox.files.watchDir('d', (event) => { seen.push([event.name, event.type]); resolve() })
                .then(() => sandbox.files.write('d/new', '1'))
        })
        await happened
        const bytes = await sandbox.files.read('d/c', { format: 'bytes' })
        const names = (await sandbox.files.list('d')).map((entry) => entry.path).sort()
        await sandbox.files.remove('d')
        const gone = await sandbox.files.read('d/a.txt').catch((error) => error.name)
        const left = await sandbox.files.exists('d')
        report(written.path, gone, bytes.length, names, seen[0], left)
        await sandbox.kill()
        process.exit(0)
    """)
    assert (written, text, size, left) == ("/home/user/d/a.txt", "FileNotFoundError", 9, False)
    assert names == [f"/home/user/d/{name}" for name in ("a.txt", "b", "c", "new")]
    assert seen == ["new", "create"]
