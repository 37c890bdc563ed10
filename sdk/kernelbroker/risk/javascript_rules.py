"""What JavaScript code may use, and how much of a risk each is: a line for each name.

As `python_rules`: a rule counts wherever the name is used, `module.*` stands for what no line names.
"""

from __future__ import annotations

from ..protocol.findings import Level
from .python_rules import Rule


def _rules(rule: str, level: Level, reason: str, names: str) -> dict[str, Rule]:
    return {name: Rule(rule, level, reason) for name in names.split()}


NAMES: dict[str, Rule] = {
    **_rules("process", "high", "runs another program", "child_process.*"),
    **_rules("process", "medium", "starts another process or thread", """
        cluster.fork worker_threads.Worker Worker SharedWorker"""),
    **_rules("code", "high", "runs text as code", """
        eval Function vm.runInThisContext vm.runInNewContext vm.runInContext vm.Script vm.compileFunction
        vm.SourceTextModule execScript Deno.run Deno.Command Bun.spawn Bun.spawnSync module._compile
        require.extensions inspector.Session repl.start v8.setFlagsFromString"""),
    **_rules("native", "high", "calls native code past JavaScript's checks", """
        process.binding process._linkedBinding process.dlopen Deno.dlopen WebAssembly.System wasi.WASI"""),
    **_rules("network", "medium", "uses the network", """
        fetch XMLHttpRequest WebSocket EventSource net.* tls.* dgram.* http.request http.get
        http.createServer
        https.request https.get https.createServer http2.* dns.* axios.* axios got.* node-fetch node-fetch.*
        undici.* ws.* superagent.* Deno.connect Deno.listen navigator.sendBeacon"""),
    **_rules("network", "safe", "", "net.isIP net.isIPv4 net.isIPv6"),
    **_rules("environment", "medium", "hands out all environment variables",
        "process.env Deno.env.toObject"),
    **_rules("end", "low", "ends the process", "process.exit process.abort process.reallyExit"),
    **_rules("signal", "medium", "can end other processes", "process.kill"),
    **_rules("escape", "high", "changes what the process is to the system", """
        process.setuid process.setgid process.seteuid process.setegid process.chroot process.initgroups"""),
    **_rules("files", "medium", "changes who may use a file", "fs.chown fs.chownSync fs.promises.chown"),
    **_rules("inspection", "low", "reaches into the loader", "module.constructor require.cache"),
}  # fmt: skip

MODULES = {
    "child_process", "fs", "fs.promises", "net", "tls", "dgram", "http", "https", "http2", "dns", "vm",
    "os", "cluster", "worker_threads", "inspector", "repl", "v8", "module", "process", "path", "axios",
}  # fmt: skip
"""What a call of the code's own function gives back if it is given it: `__importStar(require("tls"))`."""

SAME_AS = {
    "fs/promises": "fs.promises",
    "dns/promises": "dns",
    "graceful-fs": "fs",
    "fs-extra": "fs",
}
"""Names by which a module can be had as well."""

TEXTS = {"process.env.HOME": "~", "process.env.USERPROFILE": "~"}
"""Names that stand for a text which is as good as known."""

GLOBALS = {"globalThis", "global", "window", "self", "frames"}

WRITES = {
    # function of fs: which argument is written to
    "writeFile": 0, "writeFileSync": 0, "appendFile": 0, "appendFileSync": 0, "createWriteStream": 0,
    "mkdir": 0, "mkdirSync": 0, "copyFile": 1, "copyFileSync": 1, "rename": 1, "renameSync": 1,
    "cp": 1, "cpSync": 1, "link": 1, "linkSync": 1, "chown": 0, "chownSync": 0,
    "symlink": 1, "symlinkSync": 1, "chmod": 0, "chmodSync": 0, "truncate": 0, "truncateSync": 0,
}  # fmt: skip
READS = {
    "readFile", "readFileSync", "createReadStream", "open", "openSync", "readdir", "readdirSync",
    "copyFile",
    "copyFileSync", "cp", "cpSync", "readlink", "readlinkSync", "opendir", "opendirSync",
}  # fmt: skip
MOVES = {"rename", "renameSync"}
DELETES = {"rm", "rmSync", "rmdir", "rmdirSync", "unlink", "unlinkSync"}
