"""What Python code may use, and how much of a risk each is: a line for each name.

A rule counts wherever the name is used, under whatever alias, called or handed on; names of `LOOKED_INTO`
are judged by their arguments as well (`python_calls`). `module.*` stands for all that a module has that no
line names by itself. The reason is read after the name: "os.system" + "runs a shell command".
"""

from __future__ import annotations

import builtins
from typing import NamedTuple

from ..protocol.findings import Level


class Rule(NamedTuple):
    rule: str
    level: Level
    reason: str


def _rules(rule: str, level: Level, reason: str, names: str) -> dict[str, Rule]:
    return {name: Rule(rule, level, reason) for name in names.split()}


_RUNS = "runs another program"
_CONNECTS = "uses the network"

NAMES: dict[str, Rule] = {
    **_rules("process", "high", "runs a shell command", """
        os.system os.popen subprocess.getoutput subprocess.getstatusoutput
        asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_shell
        subprocess.create_subprocess_shell IPython.shell.system IPython.shell.getoutput
        IPython.shell.system_raw IPython.shell.system_piped
        commands.getoutput popen2.popen2"""),
    **_rules("process", "high", _RUNS, """
        subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen
        os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.posix_spawn
        os.posix_spawnp os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp
        os.spawnvpe pty.spawn asyncio.create_subprocess_exec asyncio.subprocess.create_subprocess_exec
        subprocess.create_subprocess_exec _posixsubprocess.fork_exec pexpect.* sh.* plumbum.*
        multiprocessing.util.spawnv_passfds distutils.spawn.spawn"""),
    **_rules("process", "medium", "starts a second process of the kernel", "os.fork os.forkpty"),
    **_rules("signal", "medium", "can end other processes", """
        os.kill os.killpg signal.pidfd_send_signal"""),
    **_rules("code", "high", "runs text as code", "builtins.exec builtins.eval"),
    **_rules("code", "medium", "runs text as code", """
        code.InteractiveInterpreter code.InteractiveConsole code.interact IPython.shell.run_cell
        IPython.shell.ex IPython.shell.ev IPython.shell.run_code timeit.exec"""),
    **_rules("code", "low", "makes code of text", "builtins.compile codeop.compile_command"),
    **_rules("code", "medium", "runs a file as code", """
        runpy.run_path runpy.run_module importlib.util.spec_from_file_location imp.load_source
        importlib.machinery.SourceFileLoader"""),
    **_rules("code", "high", "makes functions of bytecode", """
        types.CodeType types.FunctionType marshal.loads marshal.load"""),
    **_rules("pickle", "medium", "runs what the data says", """
        pickle.loads pickle.Unpickler pickle._Unpickler dill.loads cloudpickle.loads jsonpickle.decode
        shelve.open yaml.unsafe_load yaml.full_load yaml.UnsafeLoader"""),
    **_rules("pickle", "low", "runs what the file says", """
        pickle.load dill.load cloudpickle.load joblib.load pandas.read_pickle"""),
    **_rules("native", "high", "calls native code past Python's checks", """
        ctypes.* _ctypes.* cffi.* numpy.ctypeslib.load_library"""),
    **_rules("native", "safe", "", """
        ctypes.util ctypes.util.find_library ctypes.sizeof ctypes.Structure ctypes.wintypes ctypes.util.*
        ctypes.c_int ctypes.c_long ctypes.c_double ctypes.c_float ctypes.c_uint8 ctypes.c_int32
        ctypes.c_char_p ctypes.c_void_p ctypes.c_size_t ctypes.POINTER ctypes.byref"""),
    **_rules("native", "high", "makes memory that can be run", "mmap.PROT_EXEC"),
    **_rules("native", "low", "maps memory", "mmap.mmap"),
    **_rules("escape", "high", "changes what the process is to the system", """
        os.setuid os.setgid os.setresuid os.setreuid os.chroot os.unshare os.setns os.mknod
        os.sched_setscheduler"""),
    **_rules("escape", "medium", "changes limits of the process", "resource.setrlimit os.nice"),
    **_rules("inspection", "medium", "reaches into frames of other code", """
        sys._getframe sys._current_frames gc.get_objects gc.get_referrers inspect.stack"""),
    **_rules("inspection", "low", "reaches into frames of other code", """
        inspect.currentframe sys.settrace sys.setprofile"""),
    **_rules("tamper", "medium", "changes how modules are found", "sys.meta_path sys.path_hooks"),
    **_rules("environment", "medium", "hands out all environment variables", """
        os.environ os.environb posix.environ"""),
    **_rules("network", "medium", _CONNECTS, """
        socket.socket socket.create_connection socket.create_server socket.socketpair socket.fromfd
        requests.* httpx.* aiohttp.* urllib3.* urllib.request.* http.client.* ftplib.* smtplib.*
        telnetlib.* poplib.* imaplib.* xmlrpc.client.* paramiko.* fabric.* websocket.* websockets.*
        asyncio.open_connection asyncio.start_server asyncio.open_unix_connection socketserver.*
        http.server.* scapy.* boto3.* wget.download pycurl.* webbrowser.open dns.resolver.*"""),
    **_rules("network", "safe", "", """
        requests.exceptions requests.exceptions.* requests.Response requests.RequestException
        requests.HTTPError requests.ConnectionError requests.Timeout http.client.HTTPException
        http.client.responses urllib.request.Request aiohttp.ClientError httpx.HTTPError
        requests.utils requests.codes"""),
    **_rules("network", "high", "joins a connection to the process's own input and output", "os.dup2"),
    **_rules("delete", "medium", "deletes a directory with all below it", "shutil.rmtree"),
    **_rules("files", "medium", "changes who may use a file", "os.chown os.lchown shutil.chown"),
    **_rules("end", "low", "ends the kernel", "os._exit os.abort"),
}  # fmt: skip
"""Full name (or `module.*`) to rule. `safe` takes a name out of its module's `*`."""

NETWORK = {
    name
    for name, rule in NAMES.items()
    if rule.rule == "network" and rule.level == "medium" and not name.endswith("*")
} | {
    "requests.get", "requests.post", "requests.request", "requests.Session", "httpx.get", "httpx.post",
    "urllib.request.urlopen", "urllib.request.urlretrieve", "httpx.Client", "urllib3.PoolManager",
    "http.client.HTTPSConnection", "http.client.HTTPConnection", "aiohttp.ClientSession",
}  # fmt: skip
"""What gives something from elsewhere when it is called."""

DUNDERS: dict[str, Rule] = {
    "__globals__": Rule("dunder", "high", "gives the module behind a function"),
    "__builtins__": Rule("dunder", "medium", "gives everything that is built in"),
    "__code__": Rule("dunder", "medium", "gives the bytecode of a function"),
    "__closure__": Rule("dunder", "low", "gives what a function keeps to itself"),
    "f_builtins": Rule("dunder", "high", "gives everything that is built in"),
    "f_globals": Rule("dunder", "medium", "gives the names of the calling code"),
    "f_back": Rule("dunder", "medium", "reaches into frames of other code"),
    "gi_frame": Rule("dunder", "medium", "reaches into frames of other code"),
    "tb_frame": Rule("dunder", "low", "reaches into frames of other code"),
    "__reduce__": Rule("dunder", "low", "tells pickle what to call"),
    "__reduce_ex__": Rule("dunder", "low", "tells pickle what to call"),
}
"""Attributes of any object."""

ANCESTRY = {"__mro__", "__base__", "__bases__", "__class__", "mro"}
"""Ways up from an object to `object`, and with `__subclasses__` down to everything."""

SAME_AS = {
    "posix": "os", "nt": "os", "_io": "io", "cPickle": "pickle", "_pickle": "pickle",
    "__builtin__": "builtins", "__builtins__": "builtins", "posixpath": "os.path", "ntpath": "os.path",
    "_socket": "socket", "_thread": "threading", "_frozen_importlib": "importlib",
    "io.open": "builtins.open", "codecs.open": "builtins.open", "_ctypes": "_ctypes",
    "importlib._bootstrap.BuiltinImporter": "<loader>", "importlib.machinery.BuiltinImporter": "<loader>",
    "sys.modules.__builtins__": "builtins", "os.environ.data": "os.environ",
    "builtins.bytes.fromhex": "bytes.fromhex", "builtins.bytearray.fromhex": "bytes.fromhex",
}  # fmt: skip
"""Names by which something better known goes as well."""

KNOWN_BUILTINS = {
    name: f"builtins.{name}" for name in dir(builtins) if not name.startswith("_")
} | {
    "__import__": "builtins.__import__",
    "__builtins__": "builtins",
    "__loader__": "<loader>",
    "get_ipython": "IPython.get_ipython",
}

USUAL = {
    name: name
    for name in (
        "asyncio", "base64", "builtins", "codecs", "ctypes", "importlib", "marshal", "mmap", "os",
        "pathlib",
        "pickle", "pty", "requests", "runpy", "shutil", "socket", "subprocess", "sys", "types",
        "urllib", "yaml",
        "zlib", "joblib",
    )
} | {"np": "numpy", "pd": "pandas", "Path": "pathlib.Path"}  # fmt: skip
"""What a name that the code does not bind was probably bound to by an earlier cell of the session."""

_DANGEROUS_MODULES = ("os", "subprocess", "builtins", "ctypes", "sys", "importlib", "pty", "socket")

EXPORTS: dict[str, tuple[str, ...]] = {
    module: tuple(
        name.removeprefix(f"{module}.")
        for name in NAMES
        if name.startswith(f"{module}.") and "*" not in name
    )
    for module in {name.partition(".")[0] for name in NAMES}
}
"""What `from module import *` brings, of what there is a rule for."""

DANGEROUS_MODULES = frozenset(_DANGEROUS_MODULES)
"""Taking from these what is only known at run time is a finding."""

INSTANCES = {"tarfile.open": "tarfile.TarFile", "zipfile.ZipFile": "zipfile.ZipFile"}
"""What these make, where its methods are of interest."""

LISTING = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.iglob"}
"""What gives the names of files."""

TEXTS = {"sys.executable": "python3", "os.sep": "/", "os.curdir": "."}
"""Names that stand for a text which is as good as known."""
