"""Attempts on files of the host, the broker and other sandboxes, and on shared files."""

from __future__ import annotations

from . import Attempt

ATTEMPTS = [
    Attempt(group, name, code, *refused)
    for group, lines in {
        "Files of the host and the broker": [
            (
                "the passwords of the host",
                "verdict = attempt(look, '/etc/shadow')",
                "ENOENT",
                "EACCES",
            ),
            (
                "homes, keys and settings",
                "verdict = [attempt(look, path) for path in facts['files']]",
                "ENOENT",
                "ENOENT EACCES",  # the image has a home of root's own
            ),
            ("the broker's token", "verdict = attempt(look, facts['runtime_file'])", "ENOENT"),
            ("the broker's sources", "verdict = attempt(look, facts['source'])", "ENOENT"),
            (
                "the broker's modules",
                """
import importlib.util
verdict = found(n for n in ("kernelbroker", "kernelbroker_server") if importlib.util.find_spec(n))""",
                "nothing",
            ),
            ("the data directory", "verdict = attempt(os.listdir, facts['data_dir'])", "ENOENT"),
            ("the run directory", "verdict = attempt(os.listdir, facts['run_dir'])", "ENOENT"),
            (
                "the engine's socket",
                """
verdict = [attempt(connect, path, socket.AF_UNIX) for path in (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
    "/run/podman/podman.sock", "/var/run/crio/crio.sock", facts["engine_socket"])]""",
                "ENOENT",
            ),
            (
                "the root by its first process",
                """
def other_root():
    if os.path.samestat(os.stat("/proc/1/root/"), os.stat("/")):
        raise OSError("own")
verdict = attempt(other_root)""",
                "EACCES own",
            ),
            (
                "upwards from the working directory",
                """
os.chdir("/data")
verdict = attempt(look, "../../../../../../../.." + facts["runtime_file"])""",
                "ENOENT",
            ),
        ],
        "Files of other sandboxes": [
            (
                "another workspace by its path",
                "verdict = [attempt(os.listdir, path) for path in facts['workspaces']]",
                "ENOENT",
            ),
            (
                "another gateway by its socket",
                "verdict = [attempt(connect, path, socket.AF_UNIX) for path in facts['sockets']]",
                "ENOENT",
            ),
            (
                "another's files by their name",
                """
verdict = found(os.path.join(top, name) for top, _, names in os.walk("/") for name in names
             if name == facts["needle"] and not top.startswith("/proc"))""",
                "nothing",
            ),
            (
                "another's shared memory",
                "verdict = found(line.split()[1] for line in open('/proc/sysvipc/shm').readlines()[1:])",
                "nothing",
            ),
        ],
        "Links": [
            (
                "a hard link to the system's files",
                """
verdict = [attempt(os.link, "/etc/passwd", "/data/passwd"), attempt(os.link, "/usr/bin/env", "/data/env"),
        attempt(os.link, sys.executable, "/data/python", follow_symlinks=True)]""",
                "EXDEV EPERM",
            ),
            (
                "a symbolic link to the broker's token",
                """
for name, path in (("link", facts["runtime_file"]), ("up", "../../../.." + facts["runtime_file"])):
    if not os.path.lexists(f"/data/{name}"):
        os.symlink(path, f"/data/{name}")
verdict = [attempt(look, f"/data/{name}") for name in ("link", "up")]""",
                "ENOENT",
            ),
            (
                "a mount's source by a descriptor of its root",
                """
def above():
    fd = os.open("/data", os.O_PATH | os.O_DIRECTORY)
    try:
        names = set(os.listdir(f"/proc/self/fd/{fd}/.."))
    finally:
        os.close(fd)
    if names == set(os.listdir("/")):
        raise OSError("own")
verdict = attempt(above)""",
                "own",
            ),
            (
                "a file by its handle",
                "verdict = attempt(call, 'open_by_handle_at', 3, b'x' * 64, 0)",
                "EPERM",
            ),
        ],
        "Files that all sandboxes share": [
            (
                "new files in system directories",
                """
verdict = [attempt(os.open, f"{top}/planted", os.O_CREAT | os.O_WRONLY) for top in (
    "/", "/usr", "/usr/bin", "/etc", "/opt", "/opt/kernelbroker/lib", "/lib", "/bin", "/home",
    os.path.dirname(os.__file__), os.path.dirname(sys.executable), "/dev")]""",
                "EROFS EACCES",
            ),
            (
                "the packages' code",
                """
import numpy, kernelbroker_kernel
verdict = [attempt(os.open, file, os.O_WRONLY) for file in (
    os.__file__, numpy.__file__, kernelbroker_kernel.__file__, "/etc/passwd", "/bin/sh")]""",
                "EROFS EACCES",
            ),
            (
                "the packages' files removed, renamed, opened to all",
                """
import numpy
verdict = [attempt(os.unlink, numpy.__file__), attempt(os.chmod, numpy.__file__, 0o777),
        attempt(os.rename, numpy.__file__, "/data/numpy.py"), attempt(os.rmdir, "/usr/bin"),
        attempt(os.chmod, "/etc/passwd", 0o777), attempt(os.chown, "/bin/sh", 1000, 1000)]""",
                "EROFS EACCES EPERM EXDEV",
            ),
            (
                "the running interpreter",
                """
verdict = [attempt(os.open, path, os.O_WRONLY | flag) for flag in (0, os.O_TRUNC)
        for path in ("/proc/self/exe", f"/proc/{os.getppid()}/exe", "/proc/1/exe")]""",
                "EROFS EACCES ETXTBSY",
            ),
            (
                "a package that the next session loads",
                """
import site
verdict = [attempt(os.open, f"{path}/{name}", os.O_CREAT | os.O_WRONLY)
        for path in filter(os.path.isdir, site.getsitepackages())
        for name in ("planted.pth", "sitecustomize.py")]""",
                "EROFS EACCES",
            ),
            (
                "a directory that can be written, but was not meant to be",
                """
meant = {"/data", "/workspace", "/tmp", "/home/sandbox", "/home/user", "/dev/shm"}
def writable():
    for top, folders, _ in os.walk("/"):
        if top in meant or top == "/proc" or top.startswith(("/usr/share/", "/usr/lib/python3")):
            folders.clear()
        elif attempt(os.open, f"{top}/planted", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == "done":
            os.unlink(f"{top}/planted")
            yield top
verdict = found(writable())""",
                "nothing",
                "nothing /dev/mqueue",  # queues: of the container alone, within limits of their own
            ),
        ],
    }.items()
    for name, code, *refused in lines
]
