"""Attempts that take more than a cell: on the next sandbox, on the broker's own work, on others' share."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernelbroker_server.backends import procfs

from tests.e2e.support import DEADLINE_S

from .attempts.processes import ATTEMPTS
from .conftest import Inside, World

pytestmark = pytest.mark.sandbox


def processes_with(word: str) -> list[int]:
    """The host's processes that have this word on their command line."""
    found = []
    for pid in procfs.processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line and pid != os.getpid():
            found.append(pid)
    return found


def wait_until(condition: Callable[[], object]) -> None:
    """For a state of the host that nobody announces."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# What is planted for the next sandbox of the session

# Names of ours, of modules that ours and the gateway load, and of files that Python, IPython and Jupyter
# read at their start.
PLANTED = """
source = '''
import os, sys
with open("/data/.loaded", "a") as log:
    log.write(f"{__name__} {os.getpid()} {sys.argv[0]}\\\\n")
raise SystemExit("planted")
'''
modules = (
    "kernelbroker_kernel json argparse html base64 typing inspect tempfile mimetypes uuid asyncio zmq "
    "tornado traitlets sitecustomize usercustomize jupyter_kernel_gateway_config jupyter_config "
    "ipython_config ipython_kernel_config pandas numpy sched wave"
).split()
for name in modules:
    with open(f"/data/{name}.py", "w") as file:
        file.write(source)
with open("/data/planted.pth", "w") as file:
    file.write("import json; json.planted = True\\n")
for folder in ("/home/sandbox/.ipython/profile_default/startup", "/home/sandbox/.jupyter"):
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/jupyter_kernel_gateway_config.py", "w").write(source)
told = "planted" """


def test_planted_modules(doomed: Inside) -> None:
    """Files named like modules are loaded by neither the gateway nor the kernel of the next sandbox."""
    assert doomed.told(PLANTED) == ["planted"]
    for _ in range(2):
        doomed.session.restart()
        doomed.prepare()
        assert doomed.session.run("1 / 0").error == "ZeroDivisionError: division by zero"
        assert doomed.told("import json, html, sched, wave; told = 1") == [1]
        assert doomed.told(
            "told = [os.path.exists('/data/json.py'), os.path.exists('/data/.loaded')]"
        ) == [
            True,
            False,
        ]
        assert doomed.told("told = os.path.realpath(json.__file__).startswith('/data')") == [False]
    # What one's own import finds is one's own matter, as in any notebook.
    result = doomed.session.run("import pandas", timeout=30)
    assert result.error == "SystemExit: planted"


def test_planted_settings(world: World) -> None:
    """Variables of a session's own change its programs only; its next gateway starts all the same."""
    env = {"PYTHONSTARTUP": "/data/x.py", "LD_PRELOAD": "/data/x.so", "PYTHONPATH": "/data"}
    with world.client.session(env=env) as session:
        inside = Inside(world, session)
        inside.told("open('/data/json.py', 'w').write('raise SystemExit'); told = 1")
        session.restart()
        inside.prepare()
        source = """
gateway = open(f"/proc/{os.getppid()}/environ").read()
told = [name in gateway for name in ("PYTHONSTARTUP", "LD_PRELOAD", "PYTHONPATH=/data")]"""
        assert inside.told(source) == [False] * 3


# What the broker does with a session's files


def test_planted_links(world: World, tmp_path: Path) -> None:
    """None of the broker's work, be it listing, moving or removing, goes through a link to the host."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("stays")
    victim.chmod(0o604)
    folder.mkdir(mode=0o500)
    (folder / "inner").write_text("stays")
    before = [
        (path.stat().st_mode, path.stat().st_uid) for path in (victim, folder, folder / "inner")
    ]
    with world.client.session() as session:
        inside = Inside(world, session)
        result = session.run(
            f"""
os.makedirs("/data/deep/er")
for folder in ("/data", "/data/deep", "/data/deep/er"):
    os.symlink({str(victim)!r}, folder + "/victim")
    os.symlink({str(folder)!r}, folder + "/folder")
    os.symlink("/proc/self/root", folder + "/root")
    os.symlink(".", folder + "/loop")
    os.mkfifo(folder + "/pipe")
    open(folder + "/own", "w").close()
os.chmod("/data/deep/er", 0)
os.chmod("/data/deep", 0)"""
        )
        assert {file.path for file in result.files} <= {"own", "deep/own", "deep/er/own"}
        session.restart()
        inside.prepare()
        source = """
told = [os.readlink("/data/victim"), attempt(look, "/data/victim"), os.path.exists("/data/own")]"""
        assert inside.told(source) == [str(victim), "ENOENT", True]
        result = session.run("open('/data/more', 'w').close()")
        assert [file.path for file in result.files] == ["more"]
    after = [
        (path.stat().st_mode, path.stat().st_uid) for path in (victim, folder, folder / "inner")
    ]
    assert after == before
    assert (victim.read_text(), (folder / "inner").read_text()) == ("stays", "stays")
    assert world.broker.complaints() == []


# What is left of a sandbox


@pytest.mark.parametrize("end", ["restart", "close"])
def test_nothing_outlives_its_sandbox(world: World, end: str) -> None:
    """A process that left its session, its parent and all signals behind goes with its sandbox."""
    word = f"survivor-{secrets.token_hex(8)}"
    with world.client.session() as session:
        inside = Inside(world, session)
        inside.told(f"""
program = '''
import os, signal, sys
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 300)
        while True:
            signal.pause()
    os._exit(0)
'''
subprocess.run([sys.executable, "-c", program, {word!r}], check=True)
told = "started" """)
        wait_until(lambda: processes_with(word))
        if end == "restart":
            session.restart()
            inside.prepare()
        else:
            session.close()
        wait_until(lambda: not processes_with(word))


def test_nothing_is_left_for_the_next(world: World) -> None:
    """A session finds nothing of one before: no files, no sockets, no shared memory, no processes."""
    needle = f"left-{secrets.token_hex(8)}"
    with world.client.session() as session:
        Inside(world, session).told(f"""
for folder in ("/data", "/tmp", "/dev/shm", "/home/sandbox"):
    open(folder + "/{needle}", "w").close()
assert libc.shmget(4712, 4096, 0o1666) >= 0
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "{needle}"])
told = "left" """)
    for _ in range(3):  # more than were warm meanwhile
        with world.client.session() as session:
            source = f"""
told = found([folder for folder in ("/data", "/tmp", "/dev/shm", "/home/sandbox")
              if os.path.exists(folder + "/{needle}")]
             + [pid for pid in pids() if "{needle}" in open(f"/proc/{{pid}}/cmdline").read()]
             + open("/proc/sysvipc/shm").readlines()[1:])"""
            assert Inside(world, session).told(source) == ["nothing"]


# Others' share


@pytest.mark.parametrize(
    "hog",
    [
        "for _ in range(8): subprocess.Popen([sys.executable, '-c', 'while True: pass'])",
        """
def flood():
    while True:
        print("x" * 1000)
threading.Thread(target=flood, daemon=True).start()""",
        """
def write_files():
    while True:
        open(f"/data/{time.monotonic_ns()}", "wb").write(bytes(1 << 20))
        for path in glob.glob("/data/[0-9]*"):
            os.unlink(path)
threading.Thread(target=write_files, daemon=True).start()""",
    ],
    ids=["processors", "output", "disk"],
)
def test_others_go_on(world: World, doomed: Inside, hog: str) -> None:
    """While one sandbox takes all it can, the cells of another are answered."""
    result = doomed.session.run(hog)
    # Output that nobody can take as fast as it comes counts as the sandbox's memory.
    assert result.error_detail is None or result.error_detail.cause == "out_of_memory"
    for number in range(20):
        result = world.neighbour.run(f"print({number})", timeout=20)
        assert (result.success, result.stdout) == (True, f"{number}\n"), result.error
    doomed.session.restart()
    doomed.prepare()


# The sandbox's own gateway


def test_the_search_of_memories_finds(inside: Inside) -> None:
    """The attempt that finds no secret would find one: what a cell says, its gateway has in its memory."""
    (search,) = (a for a in ATTEMPTS if a.name.startswith("secrets in a memory"))
    decoy = secrets.token_hex(20)
    source = f"""
decoy, real_facts, real_pids = "{decoy}", facts, pids
facts = {{"secrets": [[40, hashlib.sha256(decoy.encode()).hexdigest()]]}}
pids = lambda: [os.getppid()]
try:
    exec({search.code!r}, globals())
finally:
    facts, pids = real_facts, real_pids"""
    assert inside.told(source) == ["secret_of_40"]


def test_terminals_are_not_addressed(world: World, inside: Inside) -> None:
    """What a cell writes for a terminal is data for its client, and stands in no log of the broker's."""
    word = secrets.token_hex(8)
    code = f"print('\\x1b]0;{word}\\x07\\x1b[2J', flush=True)\nraise ValueError('\\x1b[2J{word}')"
    result = inside.session.run(code)
    assert word in result.stdout
    assert word in str(result.error)
    log = world.broker.log.read_text()
    assert word not in log
    assert "\x1b" not in log
