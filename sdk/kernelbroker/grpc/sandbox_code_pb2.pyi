from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("path", "start", "end", "line_numbers")
    PATH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LINE_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    path: str
    start: int
    end: int
    line_numbers: bool
    def __init__(self, path: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., line_numbers: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("success", "content", "error", "code", "execution_time_ms", "encoding", "binary", "size", "sha256", "start", "end", "total_lines", "truncated")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LINES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    content: str
    error: str
    code: str
    execution_time_ms: int
    encoding: str
    binary: bool
    size: int
    sha256: str
    start: int
    end: int
    total_lines: int
    truncated: bool
    def __init__(self, success: _Optional[bool] = ..., content: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., encoding: _Optional[str] = ..., binary: _Optional[bool] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., total_lines: _Optional[int] = ..., truncated: _Optional[bool] = ...) -> None: ...

class EditRequest(_message.Message):
    __slots__ = ("path", "content", "old", "new", "count", "base")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: str
    old: str
    new: str
    count: int
    base: str
    def __init__(self, path: _Optional[str] = ..., content: _Optional[str] = ..., old: _Optional[str] = ..., new: _Optional[str] = ..., count: _Optional[int] = ..., base: _Optional[str] = ...) -> None: ...

class EditResponse(_message.Message):
    __slots__ = ("success", "diff", "error", "code", "execution_time_ms", "created", "sha256", "size")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    diff: str
    error: str
    code: str
    execution_time_ms: int
    created: bool
    sha256: str
    size: int
    def __init__(self, success: _Optional[bool] = ..., diff: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., created: _Optional[bool] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("pattern", "path", "glob", "context", "regex", "max")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    GLOB_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    path: str
    glob: str
    context: int
    regex: bool
    max: int
    def __init__(self, pattern: _Optional[str] = ..., path: _Optional[str] = ..., glob: _Optional[str] = ..., context: _Optional[int] = ..., regex: _Optional[bool] = ..., max: _Optional[int] = ...) -> None: ...

class SearchMatch(_message.Message):
    __slots__ = ("path", "line", "text", "before", "after")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    path: str
    line: int
    text: str
    before: _containers.RepeatedScalarFieldContainer[str]
    after: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, path: _Optional[str] = ..., line: _Optional[int] = ..., text: _Optional[str] = ..., before: _Optional[_Iterable[str]] = ..., after: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("success", "matches", "error", "code", "execution_time_ms", "truncated")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    matches: _containers.RepeatedCompositeFieldContainer[SearchMatch]
    error: str
    code: str
    execution_time_ms: int
    truncated: bool
    def __init__(self, success: _Optional[bool] = ..., matches: _Optional[_Iterable[_Union[SearchMatch, _Mapping]]] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., truncated: _Optional[bool] = ...) -> None: ...

class TestRequest(_message.Message):
    __slots__ = ("target", "framework", "timeout")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    target: str
    framework: str
    timeout: float
    def __init__(self, target: _Optional[str] = ..., framework: _Optional[str] = ..., timeout: _Optional[float] = ...) -> None: ...

class TestFailure(_message.Message):
    __slots__ = ("test", "file", "line", "message", "output")
    TEST_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    test: str
    file: str
    line: int
    message: str
    output: str
    def __init__(self, test: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., message: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class TestResponse(_message.Message):
    __slots__ = ("success", "output", "error", "code", "execution_time_ms", "execution_id", "framework", "passed", "failed", "errors", "skipped", "failures")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    success: bool
    output: str
    error: str
    code: str
    execution_time_ms: int
    execution_id: str
    framework: str
    passed: int
    failed: int
    errors: int
    skipped: int
    failures: _containers.RepeatedCompositeFieldContainer[TestFailure]
    def __init__(self, success: _Optional[bool] = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., execution_id: _Optional[str] = ..., framework: _Optional[str] = ..., passed: _Optional[int] = ..., failed: _Optional[int] = ..., errors: _Optional[int] = ..., skipped: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[TestFailure, _Mapping]]] = ...) -> None: ...

class BuildRequest(_message.Message):
    __slots__ = ("command", "timeout")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    command: str
    timeout: float
    def __init__(self, command: _Optional[str] = ..., timeout: _Optional[float] = ...) -> None: ...

class BuildResponse(_message.Message):
    __slots__ = ("success", "output", "error", "code", "execution_time_ms", "execution_id", "command", "exit_code")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    output: str
    error: str
    code: str
    execution_time_ms: int
    execution_id: str
    command: str
    exit_code: int
    def __init__(self, success: _Optional[bool] = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., execution_id: _Optional[str] = ..., command: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("message", "paths")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    message: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, message: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("success", "commit", "error", "code", "execution_time_ms", "branch", "files")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    success: bool
    commit: str
    error: str
    code: str
    execution_time_ms: int
    branch: str
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, success: _Optional[bool] = ..., commit: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., branch: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class CreatePRRequest(_message.Message):
    __slots__ = ("title", "body", "base")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    title: str
    body: str
    base: str
    def __init__(self, title: _Optional[str] = ..., body: _Optional[str] = ..., base: _Optional[str] = ...) -> None: ...

class CreatePRResponse(_message.Message):
    __slots__ = ("success", "url", "error", "code", "execution_time_ms", "number")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    success: bool
    url: str
    error: str
    code: str
    execution_time_ms: int
    number: int
    def __init__(self, success: _Optional[bool] = ..., url: _Optional[str] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class CommandRequest(_message.Message):
    __slots__ = ("command", "timeout")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    command: str
    timeout: float
    def __init__(self, command: _Optional[str] = ..., timeout: _Optional[float] = ...) -> None: ...

class CommandResult(_message.Message):
    __slots__ = ("success", "exit_code", "error", "code", "execution_time_ms", "execution_id")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    success: bool
    exit_code: int
    error: str
    code: str
    execution_time_ms: int
    execution_id: str
    def __init__(self, success: _Optional[bool] = ..., exit_code: _Optional[int] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., execution_time_ms: _Optional[int] = ..., execution_id: _Optional[str] = ...) -> None: ...

class CommandOutput(_message.Message):
    __slots__ = ("stdout", "stderr", "result")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    stdout: str
    stderr: str
    result: CommandResult
    def __init__(self, stdout: _Optional[str] = ..., stderr: _Optional[str] = ..., result: _Optional[_Union[CommandResult, _Mapping]] = ...) -> None: ...
