"""Commands and terminals of a sandbox, through E2B's own clients."""

from __future__ import annotations

from tests.e2b.support import E2bClients
from tests.e2e.support import whole_system

pytestmark = whole_system


def test_a_command_runs_in_the_foreground(e2b: E2bClients) -> None:
    """Its output is streamed and returned, it has the given environment and directory, and can fail."""
    ran, live, failed, where, errors = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create(envs={"OF": "the sandbox"}) as sandbox:
            run = sandbox.commands.run
            live = []
            ran = run("echo $OF $MINE; echo err >&2; printf 'h\\\\303\\\\244'", envs={"MINE": "mine"},
                      on_stdout=lambda text: live.append(["out", text]),
                      on_stderr=lambda text: live.append(["err", text]))
            try:
                run("echo before; exit 3")
            except Exception as error:
                failed = [type(error).__name__, error.exit_code, error.stdout, error.stderr]
            sandbox.files.make_dir("sub")
            where = [run("pwd", cwd=path).stdout.strip()
                     for path in (None, "sub", "/home/user/sub", "/data/sub", "/tmp")]
            report(
                [ran.stdout, ran.stderr, ran.exit_code, ran.error], sorted(live), failed, where,
                [
                    kind_of(run, "pwd", cwd="/nowhere"), kind_of(run, "pwd", user="root"),
                    kind_of(run, "sleep 60", timeout=1), kind_of(run, "x", envs={"A=B": "1"}),
                    kind_of(run, "no-such-program"), kind_of(run, "kill -9 $$"),
                ],
            )
    """)
    assert ran == ["the sandbox mine\nhä", "err\n", 0, None]
    assert "".join(text for kind, text in live if kind == "err") == "err\n"
    assert failed == ["CommandExitException", 3, "before\n", ""]
    assert where == [
        *("/home/user", "/home/user/sub", "/home/user/sub", "/data/sub", "/tmp"),
    ]
    assert [kind for kind, _ in errors] == [
        *("InvalidArgumentException", "InvalidArgumentException", "TimeoutException"),
        *("InvalidArgumentException", "CommandExitException", "CommandExitException"),
    ]
    assert "without the rights of root" in errors[1][1]


def test_commands_run_in_the_background(e2b: E2bClients) -> None:
    """They are listed, joined, fed and killed, with their children."""
    fed, listed, joined, killed, gone, ended = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            commands = sandbox.commands
            cat = commands.run("cat; echo done", background=True, stdin=True)
            commands.send_stdin(cat.pid, "one\\n")
            commands.stream_input(cat.pid, iter(["two\\n", b"three\\n"]))
            cat.close_stdin()
            fed = cat.wait().stdout
            late = commands.run("echo early; read line; echo late $line",
                                background=True, stdin=True, cwd="/tmp")
            late.disconnect()
            listed = [[p.pid == late.pid, p.cmd, p.args[-1][:10], p.cwd] for p in commands.list()]
            late = commands.connect(late.pid)
            commands.send_stdin(late.pid, "x\\n")
            joined = late.wait().stdout
            slow = commands.run("sleep 1000 & sleep 1000", background=True)
            killed = [slow.kill(), commands.kill(slow.pid), kind_of(slow.wait)[0]]
            left = commands.run("for i in 1 2 3 4 5; do pgrep -c sleep || break; sleep 0.2; done")
            left = left.stdout.split()[-1]
            report(fed, listed, joined, killed, left, [
                kind_of(commands.connect, 99999)[0], commands.kill(99999),
                kind_of(commands.send_stdin, 99999, "x")[0],
            ])
    """)
    assert fed == "one\ntwo\nthree\ndone\n"
    assert listed == [[True, "/bin/bash", "echo early", "/tmp"]]
    assert joined.endswith("late x\n")
    assert killed == [True, False, "CommandExitException"]
    assert gone == "0", "the children of a command that is killed end as well"
    assert ended == ["NotFoundException", False, "NotFoundException"]


def test_terminals_are_used(e2b: E2bClients) -> None:
    """A terminal has a size that can change, a shell with job control, and ends when the shell exits."""
    output, code, killed = e2b.python("""
        import threading
        from e2b_code_interpreter import Sandbox
        from e2b import PtySize
        with Sandbox.create() as sandbox:
            pty = sandbox.pty
            terminal = pty.create(PtySize(rows=20, cols=70), envs={"PS1": "$ "})
            output, resized = bytearray(), []
            pty.send_stdin(terminal.pid, b"stty size; echo $TERM; tty\\n")
            def on_pty(data):
                output.extend(data)
                if b"20 70" in output and b"/dev/pts/" in output and not resized:
                    resized.append(1)
                    pty.resize(terminal.pid, PtySize(rows=33, cols=111))
                    pty.send_stdin(terminal.pid, b"stty size; exit 5\\n")
            try:
                code = terminal.wait(on_pty=on_pty).exit_code
            except Exception as error:
                code = error.exit_code
            other = pty.create(PtySize(rows=20, cols=70))
            report(output.decode(), code, [pty.kill(other.pid), pty.kill(other.pid)])
    """)
    assert "20 70" in output and "33 111" in output and "xterm-256color" in output
    assert (code, killed) == (5, [True, False])


def test_a_terminal_ends_with_its_jobs(e2b: E2bClients) -> None:
    """When a killed terminal is answered, nothing runs that was started in it, in whatever group."""
    running, left = e2b.python("""
        import time
        from e2b_code_interpreter import PtySize, Sandbox
        COUNT = (
            "import pathlib\\n"
            "found = 0\\n"
            "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\\n"
            "    try:\\n"
            "        found += path.read_bytes().startswith(b'sleep\\\\x0077')\\n"
            "    except OSError:\\n"
            "        pass\\n"
            "found"
        )
        with Sandbox.create() as sandbox:
            terminal = sandbox.pty.create(PtySize(rows=20, cols=70))
            sandbox.pty.send_stdin(terminal.pid, b"sleep 771 & sleep 772 & sleep 773\\n")
            end = time.time() + 30
            while (running := int(sandbox.run_code(COUNT).text)) < 3 and time.time() < end:
                time.sleep(0.05)
            sandbox.pty.kill(terminal.pid)
            report(running, int(sandbox.run_code(COUNT).text))
    """)
    assert (running, left) == (3, 0)


def test_commands_do_not_block_cells(e2b: E2bClients) -> None:
    """A hundred commands run while a cell does, and output of any size arrives completely."""
    answers, size, cell = e2b.python("""
        import asyncio
        from e2b_code_interpreter import AsyncSandbox
        async def main():
            sandbox = await AsyncSandbox.create()
            cell = asyncio.create_task(sandbox.run_code("import time; time.sleep(2); 'cell'"))
            many = await asyncio.gather(
                *(sandbox.commands.run(f"sleep 0.5; echo {i}") for i in range(100))
            )
            big = await sandbox.commands.run(
                "head -c 20000000 /dev/zero | tr '\\\\0' x; head -c 9 /dev/urandom"
            )
            done = (await cell).text
            await sandbox.kill()
            return [r.stdout.strip() for r in many], big.stdout.count("x") >= 20_000_000, done
        report(*asyncio.run(main()))
    """)
    assert answers == [str(i) for i in range(100)]
    assert (size, cell) == (True, "cell")


def test_the_javascript_client_runs_commands(e2b: E2bClients) -> None:
    """npm's client runs commands in both grounds, sends input, and opens a terminal."""
    ran, failed, fed, terminal = e2b.node("""
        import { Sandbox } from '@e2b/code-interpreter'
        const sandbox = await Sandbox.create()
        const seen = []
        const onStdout = (text) => seen.push(text)
        const ran = await sandbox.commands.run('echo out; echo err >&2', { onStdout })
        const failed = await kindOf(() => sandbox.commands.run('exit 7'))
        const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
        await sandbox.commands.sendStdin(cat.pid, 'hello')
        await sandbox.commands.closeStdin(cat.pid)
        const fed = (await cat.wait()).stdout
        let text = ''
        const pty = await sandbox.pty.create({
            cols: 90, rows: 21, onData: (data) => { text += new TextDecoder().decode(data) }
        })
        await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\\n'))
        await pty.wait()
        report([ran.stdout, ran.stderr, seen.join('')], failed[0], fed, text.includes('21 90'))
        await sandbox.kill()
        process.exit(0)
    """)
    assert ran == ["out\n", "err\n", "out\n"]
    assert (failed, fed, terminal) == ("CommandExitError", "hello", True)
