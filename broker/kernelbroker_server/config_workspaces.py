"""The section `workspaces` of the configuration file: where workspaces are kept besides the disk."""

from __future__ import annotations

from typing import Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

_GIB = 1024**3


class S3Settings(BaseModel):
    """A bucket that keeps workspaces if the machine is lost: see docs/workspaces.md. It needs the
    extra `s3`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bucket: str = Field(min_length=3, max_length=255)
    """The bucket. It must exist."""
    prefix: str = "kernelbroker"
    """The beginning of the names of all objects."""
    endpoint: str | None = None
    """The URL of a server that is compatible with S3, such as http://minio.internal:9000; AWS if not
    set."""
    region: str = "us-east-1"
    """The region of the bucket."""
    access_key: str | None = None
    """The id of the key. If not set, that of the environment (AWS_ACCESS_KEY_ID), of the web identity,
    or of the machine's role is used."""
    secret_key: SecretStr | None = None
    """The key. Set both or none."""
    virtual_host: bool = False
    """The bucket is part of the host name of `endpoint`, in place of its path."""
    conditional_writes: bool = True
    """The server supports writes on a condition (If-Match, If-None-Match), as AWS, MinIO, Ceph and
    SeaweedFS do. If false, two brokers that open one workspace in the same moment may both get it."""
    interval: float = Field(default=30, gt=0)
    """How often the changes of a running session are saved. What was changed later is lost with the
    machine."""
    hold: float = Field(default=120, gt=0)
    """How long after its last save a workspace of a broker that does not answer stays locked. Machines'
    clocks must not differ by more than a part of this. At least twice `interval`."""
    timeout: float = Field(default=30, gt=0)
    """How long a request to the server may take, with its repetitions."""
    size: ByteSize = Field(default=ByteSize(4 * _GIB), gt=0)
    """The bound of one workspace, sparse files at their full size. Files that are more are not saved,
    and the session says so."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        return endpoint

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("set both access_key and secret_key, or none")
        if self.hold < 2 * self.interval:
            raise ValueError("hold must be at least twice interval: set both")
        return self


class WorkspaceSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    s3: S3Settings | None = None
    """Keep workspaces in a bucket of S3; the disk is a cache."""
