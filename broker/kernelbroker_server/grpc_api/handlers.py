"""The methods of the service as grpcio's handlers, made from its description."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from kernelbroker.grpc.sandbox_code_pb2 import DESCRIPTOR

from .calls import Context
from .sandbox_code import SandboxCode

_SERVICE = DESCRIPTOR.services_by_name["SandboxCodeService"]
SERVICE: str = _SERVICE.full_name


def handlers(service: SandboxCode) -> grpc.GenericRpcHandler:
    """Return the handlers. Bytes that are no message end a call as INVALID_ARGUMENT.

    Those of the generated code let grpcio log a traceback for each of them.
    """
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in _SERVICE.methods:
        behaviour = getattr(service, method.name)
        make, checked = grpc.unary_unary_rpc_method_handler, _unary(behaviour)
        if method.server_streaming:
            make, checked = grpc.unary_stream_rpc_method_handler, _stream(behaviour)
        found[method.name] = make(
            checked,
            request_deserializer=_decoder(GetMessageClass(method.input_type)),
            response_serializer=lambda message: message.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(SERVICE, found)


def _decoder(kind: type[Message]) -> Callable[[bytes], Message | None]:
    def decode(data: bytes) -> Message | None:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return None
        return message

    return decode


def _unary(behaviour: Any) -> Any:
    async def call(request: Message | None, context: Context) -> Message:
        await _expect(request, context)
        answer: Message = await behaviour(request, context)
        return answer

    return call


def _stream(behaviour: Any) -> Any:
    async def call(request: Message | None, context: Context) -> AsyncIterator[Message]:
        await _expect(request, context)
        async for each in behaviour(request, context):
            yield each

    return call


async def _expect(request: Message | None, context: Context) -> None:
    if request is None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the bytes are not the message")
