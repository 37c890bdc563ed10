"""Attempts on the next sandbox, on the broker's work, and on resources of others."""

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
    """Poll a state of the host that nothing reports."""
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
verdict = "planted" """


def test_planted_modules_are_not_loaded(doomed: Inside) -> None:
    """Neither the gateway nor the kernel of the next sandbox loads files named like modules."""
    assert doomed.verdicts(PLANTED) == ["planted"]
    for _ in range(2):
        doomed.session.restart()
        doomed.prepare()
        assert doomed.session.run("1 / 0").error == "ZeroDivisionError: division by zero"
        assert doomed.verdicts("import json, html, sched, wave; verdict = 1") == [1]
        assert doomed.verdicts(
            "verdict = [os.path.exists('/data/json.py'), os.path.exists('/data/.loaded')]"
        ) == [
            True,
            False,
        ]
        assert doomed.verdicts("verdict = os.path.realpath(json.__file__).startswith('/data')") == [
            False
        ]
    # What one's own import finds is one's own matter, as in any notebook.
    result = doomed.session.run("import pandas", timeout=30)
    assert result.error == "SystemExit: planted"


def test_planted_settings_do_not_affect_the_gateway(world: World) -> None:
    """Variables of a session affect only its programs; its next gateway starts."""
    env = {"PYTHONSTARTUP": "/data/x.py", "LD_PRELOAD": "/data/x.so", "PYTHONPATH": "/data"}
    with world.client.session(env=env) as session:
        inside = Inside(world, session)
        inside.verdicts("open('/data/json.py', 'w').write('raise SystemExit'); verdict = 1")
        session.restart()
        inside.prepare()
        source = """
gateway = open(f"/proc/{os.getppid()}/environ").read()
verdict = [name in gateway for name in ("PYTHONSTARTUP", "LD_PRELOAD", "PYTHONPATH=/data")]"""
        assert inside.verdicts(source) == [False] * 3


# What the broker does with a session's files


def test_planted_links_are_not_followed(world: World, tmp_path: Path) -> None:
    """The broker follows no links to the host when it lists, moves or removes files."""
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
verdict = [os.readlink("/data/victim"), attempt(look, "/data/victim"), os.path.exists("/data/own")]"""
        assert inside.verdicts(source) == [str(victim), "ENOENT", True]
        result = session.run("open('/data/more', 'w').close()")
        assert [file.path for file in result.files] == ["more"]
    after = [
        (path.stat().st_mode, path.stat().st_uid) for path in (victim, folder, folder / "inner")
    ]
    assert after == before
    assert (victim.read_text(), (folder / "inner").read_text()) == ("stays", "stays")
    assert world.broker.complaints() == []


SWAPPER = """
swap = '''
import os
while True:
    try:
        os.rename("/data/swapped", "/data/hidden")
        os.symlink("VICTIM", "/data/swapped")
        os.unlink("/data/swapped")
        os.rename("/data/hidden", "/data/swapped")
    except OSError:
        pass
'''
for name in ("/data/hidden", "/data/swapped"):
    os.path.islink(name) and os.unlink(name)
    shutil.rmtree(name, ignore_errors=True)
os.makedirs("/data/swapped/deep")
for number in range(200):
    open(f"/data/swapped/{number}", "w").write("mine")
swappers = [subprocess.Popen([sys.executable, "-c", swap]) for _ in range(2)]
verdict = "swapping" """


def test_directories_swapped_while_they_are_moved(world: World, tmp_path: Path) -> None:
    """A directory that becomes a link during a replacement is not followed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "stays").write_text("the host's")
    before = (victim.stat().st_mode, victim.stat().st_uid)
    with world.client.session() as session:
        inside = Inside(world, session)
        for _ in range(3):
            assert inside.verdicts(SWAPPER.replace("VICTIM", str(victim))) == ["swapping"]
            session.restart()
            inside.prepare()
            source = """
paths = (os.path.join(top, name) for top, _, names in os.walk("/data") for name in names)
verdict = found(path for path in paths
             if not os.path.islink(path) and open(path).read() not in ("mine", ""))"""
            assert inside.verdicts(source) == ["nothing"]
            assert [path.name for path in victim.iterdir()] == ["stays"]
    assert (victim / "stays").read_text() == "the host's"
    assert (victim.stat().st_mode, victim.stat().st_uid) == before


# What is left of a sandbox


@pytest.mark.parametrize("end", ["restart", "close"])
def test_nothing_outlives_its_sandbox(world: World, end: str) -> None:
    """A process that leaves its session and parent and ignores all signals ends with its sandbox."""
    word = f"survivor-{secrets.token_hex(8)}"
    with world.client.session() as session:
        inside = Inside(world, session)
        inside.verdicts(f"""
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
verdict = "started" """)
        wait_until(lambda: processes_with(word))
        if end == "restart":
            session.restart()
            inside.prepare()
        else:
            session.close()
        wait_until(lambda: not processes_with(word))


def test_nothing_is_left_for_the_next_session(world: World) -> None:
    """A session finds no files, sockets, shared memory or processes of an earlier one."""
    needle = f"left-{secrets.token_hex(8)}"
    with world.client.session() as session:
        Inside(world, session).verdicts(f"""
for folder in ("/data", "/tmp", "/dev/shm", "/home/sandbox"):
    open(folder + "/{needle}", "w").close()
assert libc.shmget(4712, 4096, 0o1666) >= 0
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "{needle}"])
verdict = "left" """)
    for _ in range(3):  # more than were warm meanwhile
        with world.client.session() as session:
            source = f"""
verdict = found([folder for folder in ("/data", "/tmp", "/dev/shm", "/home/sandbox")
              if os.path.exists(folder + "/{needle}")]
             + [pid for pid in pids() if "{needle}" in open(f"/proc/{{pid}}/cmdline").read()]
             + open("/proc/sysvipc/shm").readlines()[1:])"""
            assert Inside(world, session).verdicts(source) == ["nothing"]


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
        """
def sync():
    while True:
        open("/data/sync", "wb").write(bytes(1 << 20))
        os.sync()
for _ in range(4):
    threading.Thread(target=sync, daemon=True).start()""",
        """
held = []
try:
    while True:
        held.append(c("inotify_init1", 0))
except OSError:
    pass
try:
    while len(held) < 250:
        held.extend(os.pipe())
        fcntl.fcntl(held[-1], 1031, 1 << 20)
except OSError:
    pass""",
    ],
    ids=["processors", "output", "disk", "sync", "the user's quotas"],
)
def test_other_sandboxes_stay_responsive(world: World, doomed: Inside, hog: str) -> None:
    """While one sandbox uses all its resources, the cells of another are answered."""
    result = doomed.session.run(hog)
    # Output that is not read fast enough counts as the sandbox's memory.
    assert result.error_detail is None or result.error_detail.cause == "out_of_memory"
    for number in range(20):
        piped = "assert subprocess.check_output('seq 9 | tail -1', shell=True) == b'9\\n'"
        source = f"{piped}\nprint({number})"
        result = world.neighbour.run(source, timeout=20)
        assert (result.success, result.stdout) == (True, f"{number}\n"), result.error
    doomed.session.restart()
    doomed.prepare()


# The sandbox's own gateway


def test_the_search_for_secrets_in_memory_works(inside: Inside) -> None:
    """As a positive control, the attempt finds a secret that is in its own gateway's memory."""
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
    assert inside.verdicts(source) == ["secret_of_40"]


def test_terminal_sequences_are_data(world: World, inside: Inside) -> None:
    """Control sequences of a cell are data for its client, and are in no log of the broker."""
    word = secrets.token_hex(8)
    code = f"print('\\x1b]0;{word}\\x07\\x1b[2J', flush=True)\nraise ValueError('\\x1b[2J{word}')"
    result = inside.session.run(code)
    assert word in result.stdout
    assert word in str(result.error)
    log = world.broker.log.read_text()
    assert word not in log
    assert "\x1b" not in log
