"""The gRPC service `SandboxCodeService`: its messages and its client (extra `grpc`).

    channel = grpc.aio.insecure_channel("127.0.0.1:50051")
    stub = SandboxCodeServiceStub(channel)

`sandbox_code.proto` is in this directory, for clients in other languages. The code beside it is generated
from it by `make protos`.
"""

from .sandbox_code_pb2_grpc import SandboxCodeServiceStub

__all__ = ["SandboxCodeServiceStub"]
