"""The kernelbroker SDK: run code in warm, isolated Jupyter kernels, and stream what it produces.

    async with kernelbroker.connect() as broker:
        result = await broker.run("print(1 + 1)")

`kernelbroker.sync` has the same without `await`, `SandboxClient` the least of it, and
`kernelbroker.events` the types that streams yield.
"""

from importlib.metadata import version

from . import risk, sync
from .aio import Broker, connect
from .files import Files, Listing
from .protocol import events
from .protocol.errors import (
    BadRequest,
    ConfirmationRequired,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ExecutionFailed,
    InternalError,
    KernelBrokerError,
    MethodNotAllowed,
    NotFound,
    PolicyRefused,
    ProtocolError,
    RequestError,
    SessionGone,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from .protocol.findings import Assessment, Finding
from .protocol.messages import FileInfo
from .results import Display, ExecutionResult, Image
from .risk import assess
from .session import Session
from .simple import SandboxClient, StreamChunk
from .tables import DataFrameInfo

__version__ = version("kernelbroker")

__all__ = [
    "Assessment",
    "BadRequest",
    "Broker",
    "ConfirmationRequired",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "DataFrameInfo",
    "Display",
    "ExecutionFailed",
    "ExecutionResult",
    "FileInfo",
    "Files",
    "Finding",
    "Image",
    "InternalError",
    "KernelBrokerError",
    "Listing",
    "MethodNotAllowed",
    "NotFound",
    "PolicyRefused",
    "ProtocolError",
    "RequestError",
    "SandboxClient",
    "Session",
    "SessionGone",
    "StreamChunk",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "assess",
    "connect",
    "events",
    "risk",
    "sync",
]
