"""Parameters of operations from gRPC's requests, and gRPC's responses from answers. No I/O.

An answer comes from a sandbox, so each value in it may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelbroker.grpc.sandbox_code_pb2 import (
    BuildRequest,
    BuildResponse,
    CommandRequest,
    CommandResult,
    CommitRequest,
    CommitResponse,
    CreatePRRequest,
    CreatePRResponse,
    EditRequest,
    EditResponse,
    ReadRequest,
    ReadResponse,
    SearchMatch,
    SearchRequest,
    SearchResponse,
    TestFailure,
    TestRequest,
    TestResponse,
)
from kernelbroker.protocol.operations import CodeOperationResponse

_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


def optional(request: Any, *names: str) -> dict[str, Any]:
    """Return those of the fields that the client has set; an empty text counts as not set.

    Args:
        names: of fields. Those with explicit presence count as set whatever their value is.
    """
    found = {}
    for name in names:
        has_presence = request.DESCRIPTOR.fields_by_name[name].has_presence
        if request.HasField(name) if has_presence else getattr(request, name):
            found[name] = getattr(request, name)
    return found


def read_parameters(request: ReadRequest) -> dict[str, Any]:
    parameters = {"path": request.path, "numbers": request.line_numbers}
    return parameters | optional(request, "start", "end")


def edit_parameters(request: EditRequest) -> dict[str, Any]:
    fields = optional(request, "content", "old", "new", "count", "base")
    return {"path": request.path} | fields


def search_parameters(request: SearchRequest) -> dict[str, Any]:
    fields = optional(request, "path", "glob", "context", "regex", "max")
    return {"pattern": request.pattern} | fields


def test_parameters(request: TestRequest) -> dict[str, Any]:
    return optional(request, "target", "framework", "timeout")


def build_parameters(request: BuildRequest) -> dict[str, Any]:
    return optional(request, "command", "timeout")


def command_parameters(request: CommandRequest) -> dict[str, Any]:
    return {"command": request.command} | optional(request, "timeout")


def commit_parameters(request: CommitRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {"message": request.message}
    return parameters | ({"paths": [*request.paths]} if request.paths else {})


def pull_request_parameters(request: CreatePRRequest) -> dict[str, Any]:
    return {"title": request.title} | optional(request, "body", "base")


def read_response(answer: CodeOperationResponse) -> ReadResponse:
    result = _result(answer)
    return ReadResponse(
        **_common(answer),
        content=text(result.get("content")),
        encoding=text(result.get("encoding")),
        binary=result.get("binary") is True,
        size=_number(result.get("size"), _MAX_LONG),
        sha256=text(result.get("sha256")),
        start=_number(result.get("start")),
        end=_number(result.get("end")),
        total_lines=_number(result.get("total_lines")),
        truncated=result.get("truncated") is True,
    )


def edit_response(answer: CodeOperationResponse) -> EditResponse:
    result = _result(answer)
    return EditResponse(
        **_common(answer),
        diff=text(result.get("diff")),
        created=result.get("created") is True,
        sha256=text(result.get("sha256")),
        size=_number(result.get("size"), _MAX_LONG),
    )


def search_response(answer: CodeOperationResponse) -> SearchResponse:
    result = _result(answer)
    matches = [
        SearchMatch(
            path=text(each.get("path")),
            line=_number(each.get("line")),
            text=text(each.get("text")),
            before=_texts(each.get("before")),
            after=_texts(each.get("after")),
        )
        for each in _objects(result.get("matches"))
    ]
    truncated = result.get("truncated") is True
    return SearchResponse(**_common(answer), matches=matches, truncated=truncated)


def test_response(answer: CodeOperationResponse, output: str) -> TestResponse:
    result = _result(answer)
    failures = [
        TestFailure(
            test=text(each.get("test")),
            file=text(each.get("file")),
            line=_number(each.get("line")),
            message=text(each.get("message")),
            output=text(each.get("output")),
        )
        for each in _objects(result.get("failures"))
    ]
    return TestResponse(
        **_common(answer),
        output=text(output),
        execution_id=answer.execution_id or "",
        framework=text(result.get("framework")),
        passed=_number(result.get("passed")),
        failed=_number(result.get("failed")),
        errors=_number(result.get("errors")),
        skipped=_number(result.get("skipped")),
        failures=failures,
    )


def build_response(answer: CodeOperationResponse, output: str) -> BuildResponse:
    result = _result(answer)
    return BuildResponse(
        **_common(answer),
        output=text(output),
        execution_id=answer.execution_id or "",
        command=text(result.get("command")),
        exit_code=_number(result.get("exit_code")),
    )


def command_result(answer: CodeOperationResponse) -> CommandResult:
    return CommandResult(
        **_common(answer),
        execution_id=answer.execution_id or "",
        exit_code=_number(_result(answer).get("exit_code")),
    )


def commit_response(answer: CodeOperationResponse) -> CommitResponse:
    result = _result(answer)
    return CommitResponse(
        **_common(answer),
        commit=text(result.get("commit")),
        branch=text(result.get("branch")),
        files=_texts(result.get("files")),
    )


def pull_request_response(answer: CodeOperationResponse) -> CreatePRResponse:
    result = _result(answer)
    number = _number(result.get("number"), _MAX_LONG)
    return CreatePRResponse(**_common(answer), url=text(result.get("url")), number=number)


def text(value: object) -> str:
    """A text that protobuf can carry: without lone surrogates. What is no text is empty."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _common(answer: CodeOperationResponse) -> dict[str, Any]:
    return {
        "success": answer.success,
        "error": text(answer.error),
        "code": text(answer.code),
        "execution_time_ms": _number(answer.execution_time_ms, _MAX_LONG),
    }


def _result(answer: CodeOperationResponse) -> Mapping[str, Any]:
    return answer.result if isinstance(answer.result, dict) else {}


def _number(value: object, largest: int = _MAX_INT) -> int:
    return value if type(value) is int and -largest <= value <= largest else 0


def _texts(value: object) -> Sequence[str]:
    return [text(each) for each in value] if isinstance(value, list) else []


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
