"""The names on which broker and sandbox agree. Standard library only; no behaviour.

What an execution asks for rides in its `execute_request`, under `metadata["kernelbroker"]`; what the
helper answers comes back as display data of a MIME type of its own, which the broker takes out of
the stream.

The user's cell carries (all optional)::

    {"on_error": "rollback" | "keep", "max_variables": int, "cwd": str, "env": {name: value}}

A cell in another language is `LANGUAGE_CODE`, and carries besides::

    {"foreign": {"language": "shell" | "javascript", "code": str, "result_var": str | null}}

The report cell carries (`silent`, so that it leaves no trace in the history)::

    {"report": {"result_var": str, "preview_rows": int, "max_bytes": int}}

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

DROPPED_MIME = "application/vnd.kernelbroker.dropped+json"
"""Sent by the gateway in the place of a message too large to pass on: ``{"bytes": int}``."""

REPORT_CODE = "__import__('kernelbroker_kernel.report', fromlist=['run']).run()"
LANGUAGE_CODE = "__import__('kernelbroker_kernel.languages', fromlist=['run']).run()"
CONFIGURE_CODE = "__import__('kernelbroker_kernel.helper', fromlist=['configure']).configure()"
"""Constant code; the values ride in the metadata, so that none is ever part of a source text."""

MAX_MESSAGE_BYTES = 16 * 1024**2
"""The gateway passes on no larger message; the broker ends the connection if one comes."""

STREAM_CHUNK_CHARS = 256 * 1024
"""The kernel splits longer text, so that no single message holds all of a large output."""

WORKSPACE = "/data"
FILES_PATH = "/kernelbroker/files"
"""Under it the gateway serves the workspace's files, by percent-encoded path: GET (with Range), PUT,
DELETE (``?recursive=true``), POST ``?op=mkdir`` or ``?op=move&to=PATH``. An error is
``{"code", "message"}``."""
ENTRIES_PATH = "/kernelbroker/entries"
"""Under it GET (``?recursive=true``) lists: ``{"entries": [{"path", "kind", "size", "modified_at"}],
"truncated": bool}``, at most MAX_LIST_BYTES."""
MAX_LIST_BYTES = 16 * 1024**2
GATEWAY_MODULE = "kernelbroker_kernel"
"""``python -P -m kernelbroker_kernel (--fd N | --handover PATH | --socket PATH | --tcp HOST:PORT)
[--import MODULE]...``

The gateway listens there, starts its one kernel, and exits when that kernel ends, with the kernel's
exit status as a shell would give it: the code itself, or 128 + the signal's number."""
EXIT_GATEWAY_FAILED = 125
"""The gateway's own failure, as opposed to its kernel's end."""
