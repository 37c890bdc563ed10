"""The names on which broker and sandbox agree. Standard library only; no behaviour.

The options of a cell are in the metadata of its `execute_request`, under `"kernelbroker"`. The kernel's
hooks answer in the metadata of its reply, and with display data of MIME types of their own, which the
broker removes from the stream.

A user's cell has these options (all optional)::

    {"on_error": "rollback" | "rollback_all" | "keep", "max_variables": int, "cwd": str,
     "env": {name: value}, "notebook": bool, "workspace": {"known": bool, "watch": bool}}

The workspace is `known` if no client and no other kernel has changed files since this kernel's last cell.
With `watch`, the kernel may ask the system for reports of changes; see `changed_files`.

A cell of a notebook's client is `notebook`. It finds a stock kernel, except that the reply has the summary.
A cell without any options finds one in all.

A cell in another language runs `LANGUAGE_CODE`, and has this option as well::

    {"language": {"name": "shell" | "javascript", "code": str, "result_var": str | null}}

A cell that installs packages runs `INSTALL_CODE`, and has this option as well. `index` is true if a
package index can be reached; `index_url` is its address, if not pip's default::

    {"install": {"requirements": [str], "index": bool, "index_url": str | null}}

A cell that runs an operation on the project runs `OPERATION_CODE`, and has this option as well. Its value
for the report is named `OPERATION_VARIABLE`::

    {"operation": {"name": "run_tests" | "build" | "run" | "run_coding_agent", "parameters": {...}}}

So does an action of the browser, `"browser_navigate"` and so on. It displays a picture of the page.

The report cell (`silent`, so that it leaves no trace in the history) has::

    {"report": {"result_var": str, "preview_rows": int, "max_bytes": int}}

The broker runs an internal cell (`silent`) between the user's cells. It has one of these options, and is
answered by one message of `INTERNAL_CELL_MIME`::

    {"list": {"max_variables": int}}
    {"page": {"name": str, "offset": int, "limit": int, "sort_by": str | null, "descending": bool}}
    {"export": {"name": str, "format": "arrow" | "parquet" | "csv" | "json", "ticket": str,
     "lossy": bool, "offset": int, "limit": int | null}}    the rows from `offset` on; all if null
    {"complete": {"code": str, "cursor_pos": int}}    in characters
    {"save": {"ticket": str, "max_bytes": int, "files": bool, "configured": [str]}}
    {"load": {"path": str, "has_cwd": bool}}    from the workspace, where it is removed

The cell that applies the session's settings, right after the lease, has::

    {"configure": {"env": {name: value}, "cwd": str | null,
     "layout": {"directories": [str], "files": {path: text}} | null,
     "limits": {"cpus": number | null, "memory": int | null}}}    what the session's limits lower
"""

from __future__ import annotations

CPUS_VARIABLE, MEMORY_VARIABLE = "KERNELBROKER_CPUS", "KERNELBROKER_MEMORY"
"""The environment variables that have the limits of a sandbox: a number of processors, and bytes."""

E2B_DATA_MIME = "e2b/data"
"""The columns of a table, in sessions of E2B's clients."""

METADATA_KEY = "kernelbroker"
"""Of the options of a request. The reply to a user's cell has its summary there: ``{"execution_time":
seconds, "variables": [Variable], "variables_dropped": int, "files": [FileChange], "files_truncated": bool,
"exit_code": int | null, "removed": [name, ...]}``: the names that a failed cell had created."""

REPORT_MIME = "application/vnd.kernelbroker.report+json"
"""Sent by the report cell: ``{"dataframe": {...}}`` or ``{"return_value": ...}``, and
``"truncated": str`` if something was cut."""

INTERNAL_CELL_MIME = "application/vnd.kernelbroker.internal+json"
"""The answer to an internal cell: ``{"refused": {"code", "message"}}``; for a list ``{"variables":
[Variable], "dropped": int}``; for a page ``{"page": {...}}``, the fields of a `DataFrame`; for an export
``{"ready": true}``, when its data can be fetched at EXPORTS_PATH; for a save ``{"saved": {"variables":
[{"name", "type", "size", "form"}], "dropped": int, "missing": [{"name", "reason"}], "env": [str], "python":
str}}``, when it can be fetched at EXPORTS_PATH; for a load ``{"loaded": {"missing": [{"name", "reason"}],
"env_missing": [str]}}``; for a completion ``{"completed": {"matches": [str], "cursor_start": int,
"cursor_end": int}}``."""

CHART_MIME = "application/vnd.kernelbroker.chart+json"
"""Sent with a figure's picture: what the figure shows, as E2B's library describes it: ``{"type":
"line" | "scatter" | "bar" | "pie" | "box_and_whisker" | "superchart", "title": str | null,
"elements": [...], ...}``."""

DROPPED_MIME = "application/vnd.kernelbroker.dropped+json"
"""Sent by the gateway with an output that is too large to pass on, of which only the plain text is left:
``{"bytes": int, "text_bytes": int, "rich": bool}``: the size of all, the bytes that the text lost, and
whether there were other forms than text."""

REPORT_CODE = "__import__('kernelbroker_kernel.report', fromlist=['run']).run()"
LANGUAGE_CODE = "__import__('kernelbroker_kernel.languages', fromlist=['run']).run()"
INSTALL_CODE = "__import__('kernelbroker_kernel.installs', fromlist=['run']).run()"
OPERATION_CODE = "__import__('kernelbroker_kernel.operations.cell', fromlist=['run']).run()"
USER_CODES = (LANGUAGE_CODE, INSTALL_CODE, OPERATION_CODE)
INTERNAL_CELL_CODE = "__import__('kernelbroker_kernel.internal_cells', fromlist=['run']).run()"
CONFIGURE_CODE = "__import__('kernelbroker_kernel.hooks', fromlist=['configure']).configure()"
"""Constant code. The options are in the metadata, so that no value is ever part of a source text.
`USER_CODES` are those of a user's cells."""

MAX_MESSAGE_BYTES = 16 * 1024**2
"""The largest message that the gateway passes on. A larger one ends the broker's connection."""

WAITING_MESSAGES = 100
"""Messages of the kernel's that wait on either side of the socket to the gateway before the kernel does."""

STREAM_CHUNK_CHARS = 256 * 1024
"""The kernel splits longer text, so that no single message holds all of a large output."""

WORKSPACE = "/data"
HOME_OF_E2B = "/home/user"
"""The workspace once more, where programs written for E2B expect it."""
WORKSPACE_PATHS = (WORKSPACE, HOME_OF_E2B, "/workspace")
"""Everywhere that the workspace is mounted. Links would do for cells, but not for all programs."""
PROJECT = "project"
"""Directory of the workspace with the project that operations work on. It may be mounted there."""
PACKAGES = ".packages"
"""Directory of the workspace for the packages that a session installs."""
CHECKPOINTS = ".kernelbroker"
"""Directory of the workspace for checkpoints that are being saved or loaded."""
FILES_PATH = "/kernelbroker/files"
"""The gateway serves the workspace's files below this path, by percent-encoded path: GET (with Range),
PUT, DELETE (``?recursive=true``), POST ``?op=mkdir`` or ``?op=move&to=PATH``. An error is
``{"code", "message"}``."""
METADATA_HEADER = "X-Kernelbroker-Metadata"
"""Of a PUT: texts by key, as a JSON object in ASCII, that are kept with the file."""
METADATA_PREFIX = "user.e2b."
"""Of the names of extended attributes that hold a file's metadata, as E2B's daemon has them."""
ENTRIES_PATH = "/kernelbroker/entries"
"""GET below this path (``?recursive=true``) lists: ``{"entries": [{"path", "kind", "size", "modified_at"}],
"truncated": bool}``, at most MAX_LIST_BYTES."""
MAX_LIST_BYTES = 16 * 1024**2
SYSTEM_FILES_PATH = "/kernelbroker/system-files"
"""As FILES_PATH, for the absolute paths of the sandbox's own file system, without their leading slash."""
DETAILS_PATH = "/kernelbroker/details"
"""GET below this path (``?depth=N``, ``?system=true``) describes an entry, or with a depth those below it:
``{"entries": [{"path", "kind", "size", "modified_at", "mode", "target", "metadata"}], "truncated": bool}``,
at most MAX_LIST_BYTES. `mode` is that of stat(2). `target` is where a link leads, otherwise null. A link's
`kind` is that of the entry to which it leads, or "symlink" if it leads nowhere. `modified_at` is in seconds
since the epoch."""
WATCH_PATH = "/kernelbroker/watch"
"""GET below this path (``?recursive=true``, ``?system=true``) streams frames: ``w`` once the directory is
watched, and ``c`` for each change, ``{"path", "type"}``: `type` is create, write, remove, rename or chmod,
and `path` is relative to the directory; ``k`` as below. POST with ``?mark=TEXT`` lets each stream tell the
changes until then, and ``m`` with ``{"mark": TEXT}``."""
PROCESSES_PATH = "/kernelbroker/processes"
"""GET lists the processes that the broker has started: ``{"processes": [{"pid", "cmd", "args", "env",
"cwd", "size", "tag"}]}``. POST starts one, ``{"cmd", "args", "env", "cwd", "size": {"cols", "rows"} | null,
"stdin": bool, "tag", "timeout"}``, and GET of ``/PID`` joins one. Both answer with its frames: ``s``
``{"pid"}``; ``o``, ``e`` and ``p``, the bytes of its standard output, standard error and terminal; ``x``
``{"exit_code", "exited": bool, "signal"?}``, the last one; ``k``, with nothing, at least every
FRAMES_ALIVE_S. POST of ``/PID?op=`` has ``input`` with bytes as the body, ``close``, ``signal&number=N``,
and ``resize&cols=N&rows=N``.

A frame is one byte for its kind, four for the length (big-endian), and the content."""
FRAMES_ALIVE_S = 10.0
OPERATIONS_PATH = "/kernelbroker/operations"
"""POST of ``{parameter: value}`` to ``/NAME`` runs an operation on the project beside the cells, and
answers
``{"success": bool, "result"?, "error"?, "code"?, "execution_time_ms"}``, at most MAX_OPERATION_BYTES."""
MAX_OPERATION_BYTES = 16 * 1024**2
OPERATION_VARIABLE = "operation"
TEST_OUTPUT_MIME = "application/vnd.kernelbroker.test-output+json"
"""Displayed by `run_tests` while it runs: ``{"tests": [{"test", "outcome", "seconds"}], "passed",
"failed", "errors",
"skipped"}``: the tests that have ended since the last one, and the numbers so far."""
AGENT_EVENT_MIME = "application/vnd.kernelbroker.agent-event+json"
"""Displayed by `run_coding_agent`: one event each, ``{"type": "plan" | "step_start" | "code_operation" |
"observation" | "agent_event", "agent": str, ...}``, as `operations.agent_events` describes them."""
PORTS_PATH = "/kernelbroker/ports"
"""GET of ``/PORT`` with ``Upgrade: tcp`` connects to a server inside the sandbox. After status 101 the
connection carries its bytes in both directions. 502 if nothing listens there."""
EXPORTS_PATH = "/kernelbroker/exports"
"""GET of a ticket (32 hex digits) below this path returns the export's data, once, from the kernel."""
KERNELS_PATH = "/kernelbroker/kernels"
"""DELETE of an id below this path ends a further kernel with its processes. The first one is not there."""
KERNEL_ENDED = 4001
"""The code with which the gateway closes the channels of a further kernel that has ended. The reason is the
exit status, as a shell gives it."""
CONTRACT = "1"
CONTRACT_LABEL = "org.kernelbroker.contract"
"""An image's label with the CONTRACT that it was built with. A broker goes on with the session of a
container whose image was built again only if the label is its own CONTRACT. Raise it if brokers of this
version cannot use gateways and kernels of the version before."""
GATEWAY_MODULE = "kernelbroker_kernel"
"""``python -P -m kernelbroker_kernel (--fd N | --handover PATH | --socket PATH | --tcp HOST:PORT)
[--alone SECONDS] [--import MODULE]... [--egress PATH]``

The gateway listens there (with `--handover` it connects there, and receives each of its connections
as a descriptor), starts kernels, and exits when the first one ends, with that kernel's
exit status as a shell gives it: the code itself, or 128 + the signal's number. It also exits when
the broker dies: with `--fd` its output is a pipe that the broker reads, with `--handover` the socket
stays open, with `--tcp` there is `--alone`. With `--outlives-broker` a jail goes on, and a gateway with
`--handover` connects to the next broker, which listens there within the seconds of `--alone`.

With `--egress` it also forwards connections to the proxy at 127.0.0.1:`PROXY_PORT` to the unix socket
at that path, where the broker's proxy listens."""
FORK_SERVER_MODULE = "kernelbroker_kernel.fork_server"
"""``python -m kernelbroker_kernel.fork_server FD``: forks gateways as the broker asks it to over the socket
FD; the module describes the messages."""
JAIL_ENTRY_MODULE = "kernelbroker_kernel.jail_entry"
"""``python -m kernelbroker_kernel.jail_entry``: runs a program in a jail; the module describes it."""
ORDER_VARIABLE = "KERNELBROKER_ORDER"
"""The environment variable with its order."""
LAUNCH_DESCRIPTORS = ("jail", "listener", "output", "gate", "status")
"""Sent with each order to fork: a pidfd of the jail's first process; the listening socket; the pipe for the
output; the pipe at which the gateway waits; the pipe to which it writes its exit status, as one byte."""
CHANNELS_AFTER = "after"
"""A query argument of the address of the kernel's channels, for a broker that goes on with a kernel: the
number of the last message that it has of it, the first one being 1. Without it the broker needs none.
The gateway first sends a text, ``{"received": int, "first": int}``: how many messages it has passed to
the kernel, and the number of the first message that follows. In the other direction a text is the
number of a message: the broker needs none up to this one, and the gateway forgets them."""
ALL_SENT = "all sent"
"""A text that the gateway sends when a kernel has ended and no further message of it follows. The
broker acknowledges the last one when it has stored what they led to. Until then the gateway lives, with the
channel of a further kernel, and a next broker gets them again."""
EPOCH_HEADER = "X-Kernelbroker-Epoch"
"""A header of all requests of a broker that has taken the sandbox over from another one: a number, higher
than that of anybody before. The gateway refuses lower ones; see `fencing.py`."""
CHROMIUM = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome")
"""The programs that are tried for the browser, in this order."""
PROXY_PORT = 3128
EXIT_GATEWAY_FAILED = 125
"""The exit status of a gateway that fails itself, as opposed to its kernel."""
KERNEL_SOCKET_BYTES = len("/kernel-12345678/ipc-1")
"""The length that the kernel's own sockets add to TMPDIR."""
TOKEN_VARIABLE = "KG_AUTH_TOKEN"
"""The environment variable with the token that a gateway with ``--tcp`` expects. The kernel does not
get it. Such a gateway exits when no channel to it has been open for `ALONE_S` seconds, since it cannot
notice the broker's death otherwise."""
ALONE_S = 60.0
POD_ENTRY_MODULE = "kernelbroker_kernel.pod_entry"
"""``python -P -m kernelbroker_kernel.pod_entry --port N --secret DIR --open-files N --file-size N
--alone SECONDS -- COMMAND``

The first process of a sandbox that is a Pod. It starts the gateway's command, in which it replaces
HANDOVER, and listens on the port over TLS, with the certificate of the secret. A connection whose first
request has the secret's token goes to the gateway, or serves the paths below. It ends, with the whole Pod,
when no broker was connected for so many seconds: a broker has a request for POD_END_PATH open as long as it
lives."""
HANDOVER = "HANDOVER"
CERTIFICATE_FILE, KEY_FILE, TOKEN_FILE = "tls.crt", "tls.key", "token"
"""In the directory of the secret."""
POD_PATH = "/pod/"
POD_END_PATH = "/pod/end"
"""GET answers when the gateway has ended: ``{"status", "oom": bool, "output", "restarted": bool}``: the
exit status as a shell has it, whether a process was ended because memory ran out, the end of its output,
and whether the whole container was ended and started again. Line breaks come before it: signs of life."""
POD_USAGE_PATH = "/pod/usage"
"""GET: ``{"memory", "memory_stat": {...}, "cpu_s", "oom_kills"}`` of the container's control group, as far
as they can be read. With ``?files=N`` the size of the workspace, of at most so many files:
``{"size", "files", "complete": bool}``."""
POD_FILES_PATH = "/pod/files"
"""GET and PUT of the workspace as a stream of `tree_stream`."""
POD_KILL_PATH = "/pod/kill"
"""POST ends all processes of the sandbox but the first one, which still serves the files."""
POD_EXIT_PATH = "/pod/exit"
"""POST ends the first one as well."""
