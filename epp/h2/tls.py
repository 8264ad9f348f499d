"""TLS between a socket and a connection, without I/O: encrypted bytes in and out on one side, plain ones on the other.

An `ssl.SSLObject` over memory instead of the event loop's TLS, because a handshake that fails must be seen and counted:
a gateway that speaks plaintext, or does not trust the certificate, otherwise just gets nowhere and nobody knows why.
"""

import ssl

from epp.errors import EppError

READ_BYTES = 262_144
TLS_HANDSHAKE = 0x16
"""The first byte of every TLS connection."""


class HandshakeError(EppError):
    """The peer and we found no common TLS; the text says why."""


class TlsPipe:
    """The server's end of one TLS connection.

    Attributes:
        heard: The peer has sent something.
        established: The handshake is done.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.established = False
        self.heard = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """Take encrypted bytes; returns the plain ones they hold.

        Raises:
            HandshakeError: The handshake failed, or the peer broke TLS later.
        """
        if not self.heard and data:
            # Only the first byte tells: in TLS 1.3 the client's second flight begins with other records.
            self.heard = True
            if data[0] != TLS_HANDSHAKE:
                raise HandshakeError("expected TLS, found plaintext")
        self._incoming.write(data)
        try:
            if not self.established:
                self._object.do_handshake()
                if self._object.selected_alpn_protocol() != "h2":
                    raise HandshakeError("expected ALPN protocol h2, found none in common")
                self.established = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise HandshakeError(error.reason or type(error).__name__) from None

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._object.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: bytes) -> None:
        """Encrypt plain bytes; they come out of `take_output`."""
        if self.established and data:
            self._object.write(data)

    def take_output(self) -> bytes:
        """Encrypted bytes to write."""
        return self._outgoing.read()
