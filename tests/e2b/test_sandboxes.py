"""The control plane, through E2B's own clients for Python (sync and async) and Node.js."""

from __future__ import annotations

from datetime import datetime

import kernelbroker

from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, whole_system

pytestmark = whole_system


def test_a_sandbox_has_its_home_and_its_variables(e2b: E2bClients) -> None:
    """Code begins in /home/user, which is the workspace and `~`, also for shells."""
    seen, shell = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create(envs={"MINE": "yes"}) as sandbox:
            code = '''
        import os, pathlib, subprocess
        pathlib.Path("relative.txt").write_text("here")
        print(os.getcwd(), os.path.expanduser("~"), os.environ["MINE"], os.environ["USER"])
        print(os.listdir("/home/user"), os.listdir("/data"))
        print(subprocess.run("pwd; cd /tmp; cd; pwd", shell=True, capture_output=True, text=True).stdout)
            '''
            import textwrap
            seen = sandbox.run_code(textwrap.dedent(code))
            shell = sandbox.run_code("pwd; cat ~/relative.txt", language="bash")
            report("".join(seen.logs.stdout).split("\\n"), "".join(shell.logs.stdout))
    """)
    assert seen[:4] == [
        "/home/user /home/user yes user",
        "['relative.txt'] ['relative.txt']",
        "/home/user",
        "/home/user",
    ]
    assert shell == "/home/user\nhere"


def test_a_paused_sandbox_goes_on(e2b: E2bClients) -> None:
    """A paused sandbox keeps its variables and files, and goes on when connected to."""
    paused, again, state, listed, running, text = e2b.python("""
        from e2b import SandboxQuery, SandboxState
        from e2b_code_interpreter import Sandbox
        sandbox = Sandbox.create(metadata={"of": "pause"})
        sandbox.run_code("x = 41; open('f', 'w').write('1')")
        paused, again = sandbox.pause(), sandbox.pause()
        state = sandbox.get_info().state.value
        query = SandboxQuery(metadata={"of": "pause"}, state=[SandboxState.PAUSED])
        listed = [each.sandbox_id for each in Sandbox.list(query).next_items()] == [sandbox.sandbox_id]
        same = Sandbox.connect(sandbox.sandbox_id, timeout=60)
        running = same.get_info().state.value
        text = same.run_code("x + int(open('f').read())").text
        same.kill()
        report(paused, again, state, listed, running, text)
    """)
    assert (paused, again, state, listed) == (True, False, "paused", True)
    assert (running, text) == ("running", "42")


def test_what_cannot_be_saved_prevents_a_pause(e2b: E2bClients) -> None:
    """A sandbox with something that cannot be saved is not paused; the error names it."""
    error, text = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("g = (i for i in range(9)); next(g)")
            report(kind_of(sandbox.pause), sandbox.run_code("next(g)").text)
    """)
    assert error[0] == "SandboxException"
    assert "g: " in error[1]
    assert text == "1"


def test_a_sandbox_sleeps_at_the_end_of_its_time(e2b: E2bClients) -> None:
    """With on_timeout=pause a sandbox is paused when its time is over, and goes on later; else it ends."""
    states, text = e2b.python("""
        import time
        from e2b_code_interpreter import Sandbox
        keeps = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause", "auto_resume": True})
        ends = Sandbox.create(timeout=1)
        def state(sandbox):
            try:
                return sandbox.get_info().state.value
            except Exception as error:
                return type(error).__name__
        last = time.monotonic() + 60
        while (states := [state(keeps), state(ends)]) != ["paused", "SandboxNotFoundException"]:
            assert time.monotonic() < last, states
            time.sleep(0.1)
        text = keeps.run_code("'it woke'").text
        keeps.kill()
        report(states, text)
    """)
    assert states == ["paused", "SandboxNotFoundException"]
    assert text == "it woke"


def test_the_timeout_counts_from_now(e2b: E2bClients) -> None:
    """set_timeout moves the end of a sandbox, in both directions, and connecting never brings it nearer."""
    ends = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create(timeout=100) as sandbox:
            info = sandbox.get_info()
            ends = [info.started_at, info.end_at]
            for seconds in (1000, 50):
                sandbox.set_timeout(seconds)
                ends.append(sandbox.get_info().end_at)
            Sandbox.connect(sandbox.sandbox_id, timeout=10)
            ends.append(sandbox.get_info().end_at)
            report([each.isoformat() for each in ends])
    """)
    started, first, longer, shorter, connected = map(datetime.fromisoformat, ends)
    assert 99 <= (first - started).total_seconds() <= 130
    assert 800 <= (longer - first).total_seconds() <= 1030
    assert 900 <= (longer - shorter).total_seconds() <= 1000
    assert abs((connected - shorter).total_seconds()) < 1


def test_snapshots_and_forks_have_the_state(e2b: E2bClients) -> None:
    """A snapshot is a checkpoint that sandboxes are created from; a fork goes on with its own copy."""
    names, texts, deleted, unknown = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("x = 41; open('f', 'w').write('1')")
            snapshot = sandbox.create_snapshot(name="e2b-test")
            forks = sandbox.fork(count=2)
            names = [each.snapshot_id for each in sandbox.list_snapshots().next_items()]
            others = [Sandbox.create(snapshot.snapshot_id), *forks]
            texts = [each.run_code("x + int(open('f').read())").text for each in others]
            for each in others:
                each.kill()
            deleted = [Sandbox.delete_snapshot("e2b-test") for _ in range(2)]
            report([snapshot.snapshot_id, names], texts, deleted, kind_of(Sandbox.create, "e2b-test"))
    """)
    assert names == ["e2b-test", ["e2b-test"]]
    assert texts == ["42"] * 3
    assert deleted == [True, False]
    assert unknown[0] == "SandboxException" and "404" in unknown[1]


def test_metrics_are_what_the_sandbox_uses(e2b: E2bClients) -> None:
    """The metrics have the memory and the disk that a sandbox uses, within its limits."""
    (one,) = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("open('f', 'wb').write(bytes(5_000_000))")
            report([[each.mem_used, each.mem_total, each.disk_used, each.disk_total, each.cpu_count]
                    for each in sandbox.get_metrics()])
    """)
    assert 10 * 2**20 < one[0] < one[1] == 2**30
    assert 5_000_000 <= one[2] < one[3] == 2**30
    assert one[4] == 1


def test_errors_are_of_the_clients_kind(e2b: E2bClients) -> None:
    """A bad key, an unknown sandbox and a bad timeout give the errors that E2B's users expect."""
    bad_key, unknown, timeout, language, template = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            report(
                kind_of(Sandbox.create, api_key="e2b_wrong"),
                kind_of(Sandbox.connect, "never"),
                kind_of(sandbox.set_timeout, 10**6),
                kind_of(sandbox.run_code, "1", language="cobol"),
                kind_of(Sandbox.create, "desktop"),
            )
    """)
    assert bad_key[0] == "AuthenticationException" and "E2B_API_KEY" in bad_key[1]
    assert unknown[0] == "SandboxNotFoundException"
    assert timeout[0] == "SandboxException" and "sessions.max_lifetime" in timeout[1]
    assert language[0] == "SandboxException" and "bash" in language[1]
    assert template[0] == "SandboxException" and "code-interpreter-v1" in template[1]


def test_strangers_and_closed_sandboxes(e2b: E2bClients, e2b_stranger: str) -> None:
    """With a bad key, with that of another tenant, and after the end, each call gives an error of E2B's."""
    bad, strange, listed, mine, closed = e2b.python(
        f"""
        from e2b_code_interpreter import Sandbox
        mine = Sandbox.create()
        name = mine.sandbox_id
        def outcomes(key):
            calls = dict(
                connect=lambda: Sandbox.connect(name, api_key=key),
                info=lambda: Sandbox.get_info(name, api_key=key),
                timeout=lambda: Sandbox.set_timeout(name, 60, api_key=key),
                pause=lambda: Sandbox.pause(name, api_key=key),
                snapshot=lambda: Sandbox.create_snapshot(name, api_key=key),
                kill=lambda: Sandbox.kill(name, api_key=key) or 1 / 0,
            )
            return {{call: kind_of(ask)[0] for call, ask in calls.items()}}
        bad, strange = outcomes("wrong"), outcomes({e2b_stranger!r})
        listed = [each.sandbox_id for each in Sandbox.list(api_key={e2b_stranger!r}).next_items()]
        text = mine.run_code("'untouched'").text
        mine.kill()
        closed = dict(
            run=lambda: mine.run_code("1"),
            command=lambda: mine.commands.run("true"),
            terminal=lambda: mine.pty.create(__import__("e2b").PtySize(10, 10)),
            read=lambda: mine.files.read("x"),
            write=lambda: mine.files.write("x", "1"),
            watch=lambda: mine.files.watch_dir("."),
            context=lambda: mine.create_code_context(),
        )
        after = outcomes(None)
        after |= {{call: kind_of(ask)[0] for call, ask in closed.items()}}
        report(bad, strange, listed, text, after)
        """
    )
    assert set(bad.values()) == {"AuthenticationException"}
    assert strange.pop("kill") == closed.pop("kill") == "ZeroDivisionError", "there is none to kill"
    assert set(strange.values()) == {"SandboxNotFoundException"}
    assert (listed, mine) == ([], "untouched")
    gone = ("NotFound", "NotRunning", "Unreachable")
    gone_kinds = {f"Sandbox{each}Exception" for each in gone} | {"TimeoutException"}
    assert set(closed.values()) <= gone_kinds, closed


def test_the_async_client(e2b: E2bClients) -> None:
    """The async client works as the other one, and calls its callbacks while a cell runs."""
    pieces, results, error, ids, paused = e2b.python("""
        import asyncio
        from e2b_code_interpreter import AsyncSandbox
        async def main():
            sandbox = await AsyncSandbox.create(metadata={"of": "async"})
            pieces, results = [], []
            ran = await sandbox.run_code(
                "import sys\\nfor i in range(2): print(i, flush=True)\\nprint('e', file=sys.stderr)\\n[1]",
                on_stdout=lambda message: pieces.append([message.line, message.error]),
                on_stderr=lambda message: pieces.append([message.line, message.error]),
                on_result=lambda result: results.append(result.text),
            )
            errors = []
            await sandbox.run_code("undefined", on_error=lambda error: errors.append(error.name))
            found = await AsyncSandbox.list(limit=100).next_items()
            listed = sandbox.sandbox_id in [each.sandbox_id for each in found]
            paused = await sandbox.pause()
            await (await AsyncSandbox.connect(sandbox.sandbox_id)).kill()
            report(pieces, results, errors, listed, paused)
        asyncio.run(main())
    """)
    assert "".join(line for line, is_error in pieces if not is_error) == "0\n1\n"
    assert [line for line, is_error in pieces if is_error] == ["e\n"]
    assert (results, error, ids, paused) == (["[1]"], ["NameError"], True, True)


def test_the_client_for_node(e2b: E2bClients) -> None:
    """npm's @e2b/code-interpreter creates, runs, lists, pauses, connects and kills."""
    outputs, info, paused, text, errors = e2b.node("""
        import { Sandbox } from '@e2b/code-interpreter'
        const asked = { metadata: { of: 'node' }, envs: { A: 'b' }, timeoutMs: 60000 }
        const sandbox = await Sandbox.create(asked)
        const lines = []
        const ran = await sandbox.runCode("import os\\nprint(os.environ['A'])\\nx = 20\\nx + 1", {
            onStdout: (message) => lines.push(message.line),
        })
        const failed = await sandbox.runCode('1/0')
        const listed = await Sandbox.list({ query: { metadata: { of: 'node' } } }).nextItems()
        const info = await sandbox.getInfo()
        const paused = await sandbox.pause()
        const same = await Sandbox.connect(sandbox.sandboxId)
        const text = (await same.runCode('x')).text
        await same.kill()
        report(
            [lines, ran.text, failed.error.name],
            [listed.length, info.state, info.metadata],
            paused,
            text,
            [await kindOf(() => same.runCode('1')), await kindOf(() => Sandbox.connect('never'))],
        )
        process.exit(0)
    """)
    assert outputs == [["b\n"], "21", "ZeroDivisionError"]
    assert info == [1, "running", {"of": "node"}]
    assert (paused, text) == (True, "20")
    assert errors[0][0] == "TimeoutError"
    assert errors[1][0] == "SandboxNotFoundError"


async def test_one_session_is_seen_through_both(e2b: E2bClients, e2b_broker: BrokerProcess) -> None:
    """E2B's client finds a session of our SDK with its variables, and the SDK goes on in it."""
    async with (
        kernelbroker.connect(e2b_broker.url, e2b_broker.token) as broker,
        broker.session("native-one", metadata={"of": "sdk"}) as session,
    ):
        await session.run("x = 20")
        listed, text = e2b.python("""
            from e2b_code_interpreter import Sandbox
            found = {each.sandbox_id: each.metadata for each in Sandbox.list().next_items()}
            sandbox = Sandbox.connect("native-one")
            report(found["native-one"], sandbox.run_code("x += 1; x").text)
        """)
        assert (listed, text) == ({"of": "sdk"}, "21")
        assert str(await session.run("x")) == "21"
