"""What may be asked for as a package."""

from __future__ import annotations

import pytest
from kernelbroker.protocol.errors import BadRequest
from kernelbroker_server.sessions.packages import requirement


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("numpy", "numpy"),
        ("Name_1.x", "Name_1.x"),
        ("numpy==1.2", "numpy==1.2"),
        ("numpy >=1.2 , < 2", "numpy<2,>=1.2"),
        ("requests[socks]~=2.0", "requests[socks]~=2.0"),
        ("a; python_version < '3'", 'a; python_version < "3"'),
        ("a===1", "a===1"),
    ],
)
def test_requirements(text: str, normal: str) -> None:
    """Names with versions, extras and markers are passed on, in their normal form."""
    assert requirement(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-e .",
        "-r requirements.txt",
        "--index-url=http://evil.example",
        "--index-url http://evil.example",
        "-i",
        "--",
        "--pre",
        "-",
        ".",
        "..",
        "./package",
        "../package",
        "/etc/passwd",
        "/data/made.whl",
        "made-1.0-py3-none-any.whl",
        "made.whl",
        "made.tar.gz",
        "MADE.ZIP",
        "made.whl[extra]",
        "file:///data/made.whl",
        "https://evil.example/made.whl",
        "git+https://evil.example/made.git",
        "made @ https://evil.example/made.whl",
        "made@https://evil.example/made.whl",
        "made @ file:///data/made.whl",
        "made @ git+https://evil.example/made.git",
        "made --hash=sha256:00",
        "made --install-option=x",
        "made==1.0 other",
        "made other",
        "made\nother",
        "made\n",
        "made\r--pre",
        "made\0",
        "made; rm -rf /",
        "made && rm",
        "$(id)",
        "`id`",
        "made|sh",
        "made # comment",
        "måde",
        "ｍade",
        "_made",
        "made==",
        "made=1",
        "made==1.0;",
        "[extra]",
    ],
)
def test_what_is_refused(text: str) -> None:
    """Options, paths, addresses, files and whatever else is no name with versions."""
    with pytest.raises(BadRequest):
        requirement(text)
