"""The certificate and the token of one Pod. The broker trusts nothing but this certificate for it."""

from __future__ import annotations

import base64
import datetime
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kernelbroker_kernel.contract import CERTIFICATE_FILE, KEY_FILE, TOKEN_FILE

_NAME = "sandbox.kernelbroker.internal"
_VALID = datetime.timedelta(days=365)
_SKEW = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PodSecret:
    """What the Pod's Secret has. The key is only in there."""

    certificate: str
    token: str
    key: str = ""

    @classmethod
    def make(cls) -> PodSecret:
        """Make a new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
        now = datetime.datetime.now(datetime.UTC)
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(public, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(public),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public_pem = certificate.public_bytes(serialization.Encoding.PEM)
        return cls(public_pem.decode(), secrets.token_urlsafe(24), private.decode())

    @classmethod
    def of(cls, data: Mapping[str, str]) -> PodSecret:
        """Return that of a Secret. Raises ValueError, KeyError."""
        values = {name: base64.b64decode(value).decode() for name, value in data.items()}
        return cls(values[CERTIFICATE_FILE], values[TOKEN_FILE])

    def data(self) -> dict[str, str]:
        """Return the `data` of the Secret."""
        files = {CERTIFICATE_FILE: self.certificate, KEY_FILE: self.key, TOKEN_FILE: self.token}
        return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}

    def tls(self) -> ssl.SSLContext:
        """Return what the broker connects with. Raises ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # a Pod has no name, and no other certificate is trusted
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=self.certificate)
        return context
