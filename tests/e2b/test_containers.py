"""E2B's clients with sandboxes that are containers: what depends on the kind of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.probes import ON_GVISOR
from tests.e2b.support import E2bClients
from tests.e2e.support import backend_settings, running_broker, whole_system
from tests.support.requires import requires

pytestmark = whole_system


@pytest.fixture(
    scope="module", params=[pytest.param("docker", marks=requires("docker")), ON_GVISOR]
)
def e2b(request: pytest.FixtureRequest, installed: None) -> Iterator[E2bClients]:
    """E2B's clients, and a broker whose sandboxes are containers."""
    settings = backend_settings(request.param)
    with running_broker(
        SANDBOX__PORTS="[8000]",
        POOL__MIN_SIZE=1,
        POOL__MAX_SIZE=4,
        SANDBOX__MEMORY="1GiB",
        **settings,
    ) as broker:
        yield E2bClients(broker)


def test_cells(e2b: E2bClients) -> None:
    """Cells share a state, have the workspace as their home, show pictures and charts, and fail."""
    home, chart, error, shell = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create(envs={"MINE": "yes"}) as sandbox:
            sandbox.run_code("import os; open('f', 'w').write('here')")
            code = "print(os.getcwd(), os.path.expanduser('~'), os.environ['MINE'], os.listdir())"
            home = "".join(sandbox.run_code(code).logs.stdout)
            plot = "import matplotlib.pyplot as plt; plt.plot([1, 2], label='l'); plt.show()"
            (shown,) = [each for each in sandbox.run_code(plot).results if each.png]
            error = sandbox.run_code("1/0").error.name
            shell = sandbox.run_code("pwd; cat ~/f", language="bash").logs.stdout
            report(home, [shown.chart.type.value, shown.chart.elements[0].label], error, "".join(shell))
    """)
    assert home == "/home/user /home/user yes ['f']\n"
    assert (chart, error, shell) == (["line", "l"], "ZeroDivisionError", "/home/user\nhere")


def test_files(e2b: E2bClients) -> None:
    """Files are written, listed, moved, read and removed, and changes of directories are watched."""
    listed, read, system, gone, events = e2b.python("""
        import time
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            files = sandbox.files
            files.make_dir("sub")
            watched = files.watch_dir("sub")
            files.write("sub/a.bin", bytes(range(256)) * 1000)
            files.rename("sub/a.bin", "sub/b.bin")
            listed = [[each.path, each.size] for each in files.list("sub")]
            read = bytes(files.read("/home/user/sub/b.bin", format="bytes")) == bytes(range(256)) * 1000
            files.write("/tmp/t", "of the system")
            system = sandbox.commands.run("cat /tmp/t").stdout
            seen, last = set(), time.monotonic() + 60
            while not {"create", "rename"} <= {kind for kind, _ in seen}:
                assert time.monotonic() < last, seen
                seen |= {(each.type.value, each.name) for each in watched.get_new_events()}
            watched.stop()
            files.remove("sub")
            report(listed, read, system, files.exists("sub"), sorted(seen))
    """)
    assert listed == [["/home/user/sub/b.bin", 256_000]]
    assert (read, system, gone) == (True, "of the system", False)
    assert ["create", "a.bin"] in events


def test_commands(e2b: E2bClients) -> None:
    """Commands run in both grounds, are fed and killed, and a terminal has a size."""
    ran, failed, fed, killed, terminal = e2b.python("""
        from e2b_code_interpreter import Sandbox
        from e2b import PtySize
        with Sandbox.create() as sandbox:
            commands = sandbox.commands
            ran = commands.run("echo out; echo err >&2; pwd")
            cat = commands.run("cat", background=True, stdin=True)
            commands.send_stdin(cat.pid, "fed\\n")
            cat.close_stdin()
            slow = commands.run("sleep 1000 & sleep 1000", background=True)
            killed = [slow.kill(), kind_of(slow.wait)[0]]
            left = commands.run("cat /proc/[0-9]*/comm | grep -cx sleep || true").stdout
            pty = sandbox.pty.create(PtySize(rows=20, cols=70))
            sandbox.pty.send_stdin(pty.pid, b"stty size; exit\\n")
            output = bytearray()
            pty.wait(on_pty=output.extend)
            report([ran.stdout, ran.stderr], kind_of(commands.run, "exit 3")[0], cat.wait().stdout,
                   [*killed, left], b"20 70" in output)
    """)
    assert ran == ["out\n/home/user\n", "err\n"]
    assert (failed, fed) == ("CommandExitException", "fed\n")
    assert killed == [True, "CommandExitException", "0\n"]
    assert terminal is True


def test_servers(e2b: E2bClients) -> None:
    """A server in the sandbox answers at its port, by the headers of `get_host`'s sandbox."""
    host, answer = e2b.python("""
        import os, urllib.request
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.files.write("index.html", "served from within")
            server = sandbox.commands.run("python -u -m http.server 8000", background=True, timeout=0)
            for out, err, _ in server:
                break
            headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000",
                       "X-Access-Token": sandbox._envd_access_token}
            asked = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/index.html", headers=headers)
            report(sandbox.get_host(8000), urllib.request.urlopen(asked).read().decode())
    """)
    assert host.startswith("8000-")
    assert answer == "served from within"


def test_contexts(e2b: E2bClients) -> None:
    """Contexts have their own variables and languages in one sandbox."""
    texts, languages = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("x = 1")
            other = sandbox.create_code_context(cwd="/tmp")
            script = sandbox.create_code_context(language="js")
            sandbox.run_code("x = 2", context=other)
            texts = [sandbox.run_code("x").text, sandbox.run_code("x", context=other).text,
                     sandbox.run_code("import os; os.getcwd()", context=other).text,
                     sandbox.run_code("1 + 2", context=script).text]
            listed = [each.language for each in sandbox.list_code_contexts()]
            sandbox.remove_code_context(other)
            report(texts, listed)
    """)
    assert texts == ["1", "2", "/tmp", "3"]
    assert languages == ["python", "javascript", "python", "javascript"]


def test_pause_and_resume(e2b: E2bClients) -> None:
    """A paused sandbox goes on with its variables and files; a snapshot is the beginning of another."""
    state, text, other = e2b.python("""
        from e2b_code_interpreter import Sandbox
        sandbox = Sandbox.create()
        sandbox.run_code("x = 41; open('f', 'w').write('1')")
        snapshot = sandbox.create_snapshot()
        sandbox.pause()
        state = sandbox.get_info().state.value
        same = Sandbox.connect(sandbox.sandbox_id)
        text = same.run_code("x + int(open('f').read())").text
        other = Sandbox.create(snapshot.snapshot_id)
        again = other.run_code("x + int(open('f').read())").text
        other.kill(), same.kill()
        report(state, text, again)
    """)
    assert (state, text, other) == ("paused", "42", "42")
