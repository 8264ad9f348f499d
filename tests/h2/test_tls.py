"""TLS in memory, against the standard library's client."""

import contextlib
import ssl
from pathlib import Path

import pytest

from epp.h2.tls import HandshakeError, TlsPipe
from tests.envoy.certificates import self_signed


@pytest.fixture(scope="module")
def server_side(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    signed = self_signed("epp")
    folder: Path = tmp_path_factory.mktemp("tls")
    (folder / "c.pem").write_bytes(signed.certificate)
    (folder / "k.pem").write_bytes(signed.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "c.pem", folder / "k.pem")
    context.set_alpn_protocols(["h2"])
    return context


class Client:
    """A TLS client in memory."""

    def __init__(self, protocols: list[str], version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(protocols)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._in, self._out)

    def shake_hands(self, pipe: TlsPipe, *, byte_by_byte: bool = False) -> None:
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.object.do_handshake()
            self.deliver(pipe, byte_by_byte=byte_by_byte)
            self._in.write(pipe.take_output())

    def deliver(self, pipe: TlsPipe, *, byte_by_byte: bool = False) -> bytes:
        encrypted = self._out.read()
        if not byte_by_byte:
            return pipe.receive(encrypted) if encrypted else b""
        return b"".join(pipe.receive(encrypted[at : at + 1]) for at in range(len(encrypted)))

    def read_all(self, pipe: TlsPipe) -> bytes:
        self._in.write(pipe.take_output())
        found = b""
        try:
            while True:
                found += self.object.read(65_536)
        except ssl.SSLWantReadError:
            return found


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_bytes_pass_both_ways_in_every_version(
    server_side: ssl.SSLContext, version: ssl.TLSVersion, byte_by_byte: bool
) -> None:
    pipe, client = TlsPipe(server_side), Client(["h2"], version)
    client.shake_hands(pipe, byte_by_byte=byte_by_byte)
    client.object.write(b"ping" * 10_000)

    assert pipe.established
    assert client.deliver(pipe) == b"ping" * 10_000
    pipe.send(b"pong" * 300_000)  # over many TLS records
    assert client.read_all(pipe) == b"pong" * 300_000


def test_plaintext_is_told_from_tls(server_side: ssl.SSLContext) -> None:
    with pytest.raises(HandshakeError, match="expected TLS, found plaintext"):
        TlsPipe(server_side).receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


def test_a_client_without_http2_is_refused(server_side: ssl.SSLContext) -> None:
    with pytest.raises(HandshakeError, match="expected ALPN protocol h2"):
        Client(["http/1.1"]).shake_hands(TlsPipe(server_side))


def test_bytes_that_only_begin_like_tls_are_a_failed_handshake(server_side: ssl.SSLContext) -> None:
    with pytest.raises(HandshakeError):
        TlsPipe(server_side).receive(b"\x16" + b"garbage" * 100)


def test_what_comes_before_the_end_of_tls_is_not_lost(server_side: ssl.SSLContext) -> None:
    pipe, client = TlsPipe(server_side), Client(["h2"])
    client.shake_hands(pipe)
    client.object.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        client.object.unwrap()

    assert client.deliver(pipe) == b"last words"


def test_nothing_is_encrypted_before_the_handshake(server_side: ssl.SSLContext) -> None:
    pipe = TlsPipe(server_side)
    pipe.send(b"secret")

    assert pipe.take_output() == b""
