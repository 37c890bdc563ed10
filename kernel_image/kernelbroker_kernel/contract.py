"""The names on which broker and sandbox agree. Standard library only; no behaviour.

What an execution asks for rides in its `execute_request`, under `metadata["kernelbroker"]`; what the
helper answers comes back as display data of a MIME type of its own, which the broker takes out of
the stream.

The user's cell carries (all optional)::

    {"on_error": "rollback" | "keep", "max_variables": int, "cwd": str, "env": {name: value}}

A cell in another language is `LANGUAGE_CODE`, and carries besides::

    {"foreign": {"language": "shell" | "javascript", "code": str, "result_var": str | null}}

A cell that installs packages is `INSTALL_CODE`, and carries besides (`index` says whether one can be
reached, `index_url` which one, if not pip's own)::

    {"install": {"requirements": [str], "index": bool, "index_url": str | null}}

The report cell carries (`silent`, so that it leaves no trace in the history)::

    {"report": {"result_var": str, "preview_rows": int, "max_bytes": int}}

An errand is a cell of the broker's own (`silent`), between the user's. It carries one of these, and is
answered by one message of ERRAND_MIME::

    {"list": {"max_variables": int}}
    {"export": {"name": str, "format": "arrow" | "parquet" | "csv" | "json", "ticket": str}}

The cell that delivers what belongs to the session alone, right after the lease, carries::

    {"configure": {"env": {name: value}, "cwd": str | null}}
"""

from __future__ import annotations

METADATA_KEY = "kernelbroker"

SUMMARY_MIME = "application/vnd.kernelbroker.summary+json"
"""Sent at the end of each user's cell: ``{"execution_time": seconds, "variables": [Variable],
"variables_dropped": int, "files": [FileChange], "files_truncated": bool, "exit_code": int | null}``."""

REPORT_MIME = "application/vnd.kernelbroker.report+json"
"""Sent by the report cell: ``{"dataframe": {...}}`` or ``{"return_value": ...}``, and
``"truncated": str`` where something was cut."""

ERRAND_MIME = "application/vnd.kernelbroker.errand+json"
"""The answer to an errand: ``{"refused": {"code", "message"}}``; for a list ``{"variables": [Variable],
"dropped": int}``; for an export ``{"ready": true}``: its data can be fetched now, at EXPORTS_PATH."""

DROPPED_MIME = "application/vnd.kernelbroker.dropped+json"
"""Sent by the gateway in the place of a message too large to pass on: ``{"bytes": int}``."""

REPORT_CODE = "__import__('kernelbroker_kernel.report', fromlist=['run']).run()"
LANGUAGE_CODE = "__import__('kernelbroker_kernel.languages', fromlist=['run']).run()"
INSTALL_CODE = "__import__('kernelbroker_kernel.installs', fromlist=['run']).run()"
ERRAND_CODE = "__import__('kernelbroker_kernel.errands', fromlist=['run']).run()"
CONFIGURE_CODE = "__import__('kernelbroker_kernel.helper', fromlist=['configure']).configure()"
"""Constant code; the values ride in the metadata, so that none is ever part of a source text."""

MAX_MESSAGE_BYTES = 16 * 1024**2
"""The gateway passes on no larger message; the broker ends the connection if one comes."""

STREAM_CHUNK_CHARS = 256 * 1024
"""The kernel splits longer text, so that no single message holds all of a large output."""

WORKSPACE = "/data"
PACKAGES = ".packages"
"""Directory of the workspace that holds what a session has installed."""
FILES_PATH = "/kernelbroker/files"
"""Under it the gateway serves the workspace's files, by percent-encoded path: GET (with Range), PUT,
DELETE (``?recursive=true``), POST ``?op=mkdir`` or ``?op=move&to=PATH``. An error is
``{"code", "message"}``."""
ENTRIES_PATH = "/kernelbroker/entries"
"""Under it GET (``?recursive=true``) lists: ``{"entries": [{"path", "kind", "size", "modified_at"}],
"truncated": bool}``, at most MAX_LIST_BYTES."""
MAX_LIST_BYTES = 16 * 1024**2
EXPORTS_PATH = "/kernelbroker/exports"
"""Under it GET of an export's ticket, 32 hex digits, brings its data, once. The kernel itself answers."""
GATEWAY_MODULE = "kernelbroker_kernel"
"""``python -P -m kernelbroker_kernel (--fd N | --handover PATH | --socket PATH | --tcp HOST:PORT)
[--alone SECONDS] [--import MODULE]... [--egress PATH]``

The gateway listens there, starts its one kernel, and exits when that kernel ends, with the kernel's
exit status as a shell would give it: the code itself, or 128 + the signal's number. It also exits when
the broker dies: with `--fd` its output is a pipe that the broker reads, with `--handover` the socket
stays open, with `--tcp` there is `--alone`.

With `--egress` it also passes on what programs send to the proxy at 127.0.0.1:`PROXY_PORT` to the unix
socket of that path, where the broker's proxy listens."""
PROXY_PORT = 3128
EXIT_GATEWAY_FAILED = 125
"""The gateway's own failure, as opposed to its kernel's end."""
KERNEL_SOCKET_BYTES = len("/kernel-12345678/ipc-1")
"""What the paths of the kernel's own sockets add to that of TMPDIR."""
TOKEN_VARIABLE = "KG_AUTH_TOKEN"
"""The environment variable with the token that a gateway with ``--tcp`` asks for. The kernel does not
get it. Such a gateway ends by itself when no channel to it has been open for `ALONE_S` seconds, since
it cannot tell otherwise that the broker has died."""
ALONE_S = 60.0
