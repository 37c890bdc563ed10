"""What Python names mean.

A rule applies wherever its name is used: called, passed on or bound to another name. `module.*` stands for
all names of a module that have no rule of their own; the level `safe` excludes a name from it.
"""

from __future__ import annotations

import builtins

from .collector import Rule, names, rules

COMMAND_FUNCTIONS = """os.system os.popen subprocess.run subprocess.call subprocess.check_call
    subprocess.check_output subprocess.Popen subprocess.getoutput subprocess.getstatusoutput pty.spawn
    asyncio.create_subprocess_shell get_ipython().system get_ipython().getoutput"""
CODE_FUNCTIONS = """builtins.exec builtins.eval get_ipython().run_cell get_ipython().ex
    get_ipython().ev timeit.timeit timeit.repeat cProfile.run"""

NAMES: dict[str, Rule] = {
    **rules("process", "high", "runs another program", f"""{COMMAND_FUNCTIONS}
        os.posix_spawn os.posix_spawnp os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp
        os.execvpe os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe
        asyncio.create_subprocess_exec _posixsubprocess.fork_exec pexpect.* sh.* plumbum.*"""),
    **rules("process", "medium", "starts another process", "os.fork os.forkpty"),
    **rules("code", "high", "runs text as code", "builtins.exec builtins.eval"),
    **rules("code", "medium", "runs text or a file as code", """code.* runpy.* get_ipython().run_cell
        get_ipython().ex get_ipython().ev get_ipython().run_code importlib.util.spec_from_file_location
        importlib.machinery.SourceFileLoader"""),
    **rules("code", "low", "makes code of text", "builtins.compile"),
    **rules("bytecode", "high", "makes functions of bytecode", """types.CodeType types.FunctionType
        marshal.loads marshal.load"""),
    **rules("pickle", "medium", "runs what the data says", """pickle.loads pickle.Unpickler
        dill.loads cloudpickle.loads jsonpickle.decode shelve.open yaml.unsafe_load yaml.full_load
        yaml.UnsafeLoader"""),
    **rules("pickle", "low", "may run what the data says", """pickle.load dill.load cloudpickle.load
        joblib.load pandas.read_pickle yaml.load"""),
    **rules("native", "high", "calls native code past Python's checks", """ctypes.* cffi.*
        numpy.ctypeslib.load_library mmap.PROT_EXEC"""),
    **rules("native", "safe", "", """ctypes.util ctypes.util.* ctypes.sizeof ctypes.Structure
        ctypes.c_int ctypes.c_long ctypes.c_double ctypes.c_char_p ctypes.c_void_p ctypes.POINTER"""),
    **rules("escape", "high", "changes what the process may do", """os.setuid os.setgid os.setresuid
        os.setreuid os.chroot os.unshare os.setns os.mknod"""),
    **rules("inspection", "medium", "reaches into other code's frames", """sys._getframe
        sys._current_frames gc.get_objects gc.get_referrers inspect.stack"""),
    **rules("tamper", "medium", "changes how modules are found", "sys.meta_path sys.path_hooks"),
    **rules("environment", "medium", "gives all environment variables", "os.environ os.environb"),
    **rules("network", "medium", "uses the network", """socket.socket socket.create_connection
        socket.create_server socket.socketpair socket.fromfd requests.* httpx.* aiohttp.* urllib3.*
        urllib.request.* http.client.* ftplib.* smtplib.* telnetlib.* poplib.* imaplib.*
        xmlrpc.client.* paramiko.* websocket.* websockets.* asyncio.open_connection pycurl.*
        asyncio.start_server socketserver.* http.server.* scapy.* boto3.*"""),
    **rules("network", "safe", "", """requests.exceptions requests.exceptions.* requests.Response
        requests.RequestException requests.HTTPError requests.ConnectionError requests.Timeout
        requests.utils requests.codes http.client.responses urllib.request.Request httpx.HTTPError"""),
    **rules("network", "high", "connects a socket to the process's own input and output", "os.dup2"),
    **rules("escape", "high", "talks to the container engine", "docker.from_env docker.DockerClient"),
    **rules("signal", "medium", "can end other processes", "os.kill os.killpg signal.pidfd_send_signal"),
    **rules("files", "medium", "changes the owner of a file", "os.chown os.lchown shutil.chown"),
    **rules("end", "low", "ends the kernel", "os._exit os.abort"),
}  # fmt: skip

ATTRIBUTES: dict[str, Rule] = {
    **rules("introspection", "high", "gives access to other code", "__subclasses__ __globals__ f_builtins"),
    **rules("introspection", "medium", "gives access to other code", """f_globals f_back gi_frame
        cr_frame __code__ __builtins__"""),
    **rules("pickle", "low", "tells pickle what to call", "__reduce__ __reduce_ex__"),
}  # fmt: skip
"""Attributes of any object."""

MODULES_WITH_RISKS = names("os subprocess builtins ctypes sys importlib pty socket")
"""Names looked up in these at run time are a finding; any module may have imported them."""

SAME_AS = {
    "posix": "os", "nt": "os", "_io": "io", "cPickle": "pickle", "_pickle": "pickle",
    "__builtin__": "builtins", "__builtins__": "builtins", "_socket": "socket", "_ctypes": "ctypes",
    "io.open": "builtins.open", "codecs.open": "builtins.open", "asyncio.subprocess": "asyncio",
    "importlib.__import__": "builtins.__import__", "IPython.get_ipython": "get_ipython",
    "os.environ.data": "os.environ",
}  # fmt: skip
"""Other names of modules and functions."""

BUILTINS = {
    **{name: f"builtins.{name}" for name in dir(builtins) if not name.startswith("_")},
    "__import__": "builtins.__import__",
    "__builtins__": "builtins",
    "get_ipython": "get_ipython",
}
_USUAL_MODULES = names("""
    asyncio base64 builtins codecs ctypes importlib marshal mmap os pathlib pickle pty requests runpy
    shutil socket subprocess sys types urllib yaml joblib glob""")
USUAL_NAMES = {name: name for name in _USUAL_MODULES} | {"pd": "pandas", "Path": "pathlib.Path"}
"""The assumed meaning of names that the code does not bind; an earlier cell may have bound them."""
TEXTS = {"sys.executable": "python3", "os.sep": "/", "os.curdir": "."}

READ_FUNCTIONS = names("""
    open listdir scandir walk glob iglob rglob iterdir loadtxt genfromtxt fromfile copy copy2 copyfile
    copytree symlink link read_text read_bytes getline getlines load connect FileIO ZipFile make_archive
    read_csv read_table read_json read_parquet read_excel read_fwf read_pickle scan_csv imread""")
"""Functions and methods, by their last name, that read the paths among their arguments."""
WRITE_TO_FIRST = names("""
    makedirs mkfifo truncate to_csv to_json to_parquet to_feather to_pickle to_excel to_html savefig
    savetxt imsave imwrite save savez extractall""")
WRITE_TO_LAST = names("""
    copyfile copy copy2 copytree link symlink move rename replace urlretrieve unpack_archive""")
"""Functions that write to the path in their first or last argument."""
WRITE_METHODS = names("write_text write_bytes touch mkdir chmod symlink_to")
DELETE_FUNCTIONS = names("unlink rmdir remove rmtree")
