"""Certificates of the ext_proc port: made here, or read from files and read again when they change."""

import contextlib
import datetime
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.clock import Clock
from epp.errors import ConfigError

SELF_SIGNED_LIFE = datetime.timedelta(days=3650)
RELOAD_EVERY_S = 5.0
"""How often changed files are looked for, at a new handshake; Kubernetes itself takes up to a minute to swap them."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its private key, in PEM."""

    certificate: bytes
    key: bytes


class ReloadLog(Protocol):
    """Where a reload is told."""

    def info(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


def self_signed(now: datetime.datetime) -> KeyPair:
    """A certificate that nobody can verify, for gateways that do not try (the reference pickers' default)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "inference-epp")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + SELF_SIGNED_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("inference-epp")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def read_key_pair(folder: Path) -> KeyPair:
    """`tls.crt` and `tls.key` in `folder` (the names of a Kubernetes TLS secret).

    Raises:
        ConfigError: A file is missing or broken, or the key does not belong to the certificate.
    """
    certificate_file, key_file = folder / "tls.crt", folder / "tls.key"
    try:
        certificate, key = certificate_file.read_bytes(), key_file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--cert-path: expected {error.filename} to be readable, found: {error.strerror}") from None
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
    except ValueError:
        raise ConfigError(f"{certificate_file}: expected a certificate in PEM, found something else") from None
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{key_file}: expected an unencrypted private key in PEM, found something else") from None
    if private.public_key() != leaf.public_key():
        raise ConfigError(f"{key_file}: expected the key of {certificate_file}, found another key")
    return KeyPair(certificate, key)


def server_context(pair: KeyPair, client_ca: bytes | None = None) -> ssl.SSLContext:
    """A TLS context for HTTP/2 that shows the key pair.

    Args:
        client_ca: Certificates in PEM; clients must then show one that is signed by them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if client_ca is not None:
        context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
        context.verify_mode = ssl.CERT_REQUIRED
    # Python's `ssl` reads key pairs from files only; this one is in memory and has no name that anybody else could open.
    file = os.memfd_create("epp-tls")
    try:
        os.write(file, pair.certificate + b"\n" + pair.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def server_contexts(tls: "KeyPair | CertificateReloader", client_ca: bytes | None = None) -> Callable[[], ssl.SSLContext]:
    """Gives the context for the next connection: another one when the reloader found another key pair."""
    if isinstance(tls, KeyPair):
        only = server_context(tls, client_ca)
        return lambda: only
    reloader = tls
    current = server_context(reloader.current, client_ca)

    def context() -> ssl.SSLContext:
        nonlocal current
        pair = reloader.changed()
        if pair is not None:
            with contextlib.suppress(ssl.SSLError):  # what OpenSSL does not take is not shown; the old pair stays
                current = server_context(pair, client_ca)
        return current

    return context


def read_client_ca(file: Path) -> bytes:
    """The certificates in `file`.

    Raises:
        ConfigError: It cannot be read, or holds none.
    """
    try:
        text = file.read_bytes()
        x509.load_pem_x509_certificates(text)
    except OSError as error:
        raise ConfigError(f"--client-ca: expected {file} to be readable, found: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"--client-ca: expected certificates in PEM in {file}, found something else") from None
    return text


class CertificateReloader:
    """Gives the current key pair at each handshake; keeps the old one while the files are broken.

    Threads: gRPC asks from threads of its own.
    """

    def __init__(self, folder: Path, *, clock: Clock, log: ReloadLog) -> None:
        self._folder = folder
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._looked_at_s = clock.monotonic_s()
        self._problem: str | None = None
        self.current = read_key_pair(folder)

    def changed(self) -> KeyPair | None:
        """The new pair if the files changed since the last look and are good; looks at most every `RELOAD_EVERY_S`."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._looked_at_s < RELOAD_EVERY_S:
                return None
            self._looked_at_s = now_s
            try:
                pair = read_key_pair(self._folder)
            except ConfigError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._log.error("certificate_kept", problem=self._problem)
                return None
            self._problem = None
            if pair == self.current:
                return None
            self.current = pair
            self._log.info("certificate_reloaded", folder=str(self._folder))
            return pair
