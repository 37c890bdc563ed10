"""The gRPC service for operations on projects: `SandboxCodeService`."""
