"""Reads one HTTP/1.1 answer from bytes as they come; no I/O.

What RFC 9112 allows to end a body is understood: a length, chunks (their extensions and trailers are skipped), or the end
of the connection. Interim answers (100 Continue) are skipped. What it forbids is an error, never a guess.
"""

import re
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Final

from epp.scrape.reasons import Reason, ScrapeError

MAX_HEAD_BYTES = 64 << 10
"""For the head of an answer, for its trailers, and for the line that opens a chunk."""
MAX_INTERIM_ANSWERS = 16
SMALL_PIECES = 4096
"""A body may come in so many chunks however small they are …"""
CHUNK_BYTES = 1024
"""… and in one more for each of so many bytes: a chunk costs 2 µs, and a page of 1-byte chunks takes seconds."""
MAX_COMPRESSED_BYTES = 1 << 20
"""Compressed pages that nobody asked for; more that unfolds to a page is built to be slow."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_HEADER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*)")
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_GZIP_OR_ZLIB: Final = 47  # zlib.decompressobj(wbits=47) reads the header of either


class _Step(Enum):
    """What comes next in a body of chunks."""

    SIZE = "size"
    CONTENT = "content"
    CONTENT_END = "content end"
    TRAILERS = "trailers"


class Response:
    """One answer, filled by `feed`.

    Attributes:
        status: 0 until the head is complete.
        headers: Names in lower case; a name that came twice has its values joined by a comma.
        complete: The last byte is there.
        reusable: Once complete: whether another request may follow on the connection.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.complete = False
        self.reusable = False
        self._limit = max_body_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiting = b""  # not understood yet: part of the head, of a chunk's line, of the trailers
        self._left: int | None = None  # bytes missing in the body or chunk; None when only the end of the connection ends it
        self._chunked = False
        self._interim = 0
        self._lines = 0  # that open or end chunks, and trailers
        self._step = _Step.SIZE

    @property
    def started(self) -> bool:
        """Whether anything has come."""
        return bool(self.status or self._waiting)

    def feed(self, received: bytes) -> None:
        """Take the next bytes of the connection.

        Raises:
            ScrapeError: This is no HTTP, or the body is over its limit; the connection cannot be used any more.
        """
        while not self.status:
            received = self._waiting + received
            end = received.find(b"\r\n\r\n")
            if end < 0:
                self._waiting = received
                if len(received) > MAX_HEAD_BYTES or b"HTTP/1."[: len(received)] != received[:7]:
                    raise _garbage("the answer is not HTTP")
                return
            self._waiting = b""
            self._read_head(received[:end])
            received = received[end + 4 :]
        if self._chunked:
            self._feed_chunks(received)
        else:
            self._feed_plain(received)

    def end(self) -> None:
        """The connection was closed by the other side.

        Raises:
            ScrapeError: In the middle of the answer.
        """
        if self.complete:
            return
        if not self.status or self._chunked or self._left is not None:
            part = "before the page began" if not self.status else "in the middle of the page"
            raise ScrapeError(Reason.CONNECT, f"the connection was cut {part}")
        self.complete = True

    def body(self) -> bytes:
        """The whole body, decompressed.

        Raises:
            ScrapeError: It is over its limit, broken, or compressed in a way that nobody asked for.
        """
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding == "identity":
            return whole
        if encoding not in {"gzip", "x-gzip", "deflate"}:
            raise _garbage(f"content-encoding: expected identity or gzip, found {encoding[:20]}")
        if len(whole) > MAX_COMPRESSED_BYTES:
            raise ScrapeError(Reason.TOO_LARGE, f"compressed page over {MAX_COMPRESSED_BYTES} bytes")
        unpack = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            plain = unpack.decompress(whole, self._limit + 1)
        except zlib.error:
            raise _garbage("the page is said to be compressed and is not") from None
        if len(plain) > self._limit:
            raise self._too_large()
        if not unpack.eof:
            raise _garbage("the compressed page ends in the middle")
        return plain

    def _read_head(self, head: bytes) -> None:
        status_line, *lines = head.split(b"\r\n")
        status = _STATUS_LINE.fullmatch(status_line)
        if status is None:
            raise _garbage("the answer is not HTTP")
        code = int(status[2])
        if code < 200:
            if code == 101:
                raise _garbage("the server changed to another protocol")
            self._interim += 1
            if self._interim > MAX_INTERIM_ANSWERS:
                raise _garbage(f"more than {MAX_INTERIM_ANSWERS} interim answers")
            return  # interim: the real answer follows
        self.status = code
        self.headers = _read_headers(lines)
        tokens = {token.strip() for token in self.headers.get("connection", "").lower().split(",")}
        self.reusable = "close" not in tokens if status[1] == b"1" else "keep-alive" in tokens
        self._find_end()

    def _find_end(self) -> None:
        """How long the body is (RFC 9112, section 6.3)."""
        coding = self.headers.get("transfer-encoding")
        length = self.headers.get("content-length")
        if self.status in {204, 304}:
            self._left = 0
        elif coding is not None:
            if coding.strip().lower() != "chunked":
                raise _garbage(f"transfer-encoding: expected chunked, found {coding[:20]}")
            self._chunked = True
            self._left = 0
            self.reusable = self.reusable and length is None
        elif length is not None:
            values = {value.strip() for value in length.split(",")}
            value = values.pop()
            if values or not (value.isascii() and value.isdigit()):
                raise _garbage(f"content-length: expected a number, found {length[:20]!r}")
            if len(value) > 15 or int(value) > self._limit:
                raise self._too_large()
            self._left = int(value)
        else:
            self.reusable = False

    def _feed_plain(self, received: bytes) -> None:
        left = self._left
        if left is None:
            self._add(received)
        elif len(received) <= left:
            self._add(received)
            self._left = left - len(received)
            self.complete = not self._left
        else:
            self._add(received[:left])
            self._left = 0
            self.complete = True
            self.reusable = False  # what is behind the end belongs to nobody

    def _feed_chunks(self, received: bytes) -> None:
        buffer = self._waiting + received
        at = 0
        while at < len(buffer) and not self.complete:
            if self._step is _Step.CONTENT:
                assert self._left is not None
                piece = buffer[at : at + self._left]
                self._add(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._step = _Step.CONTENT_END
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            self._take_line(buffer[at:end])
            at = end + 2
        self._waiting = buffer[at:]
        if self.complete:
            self.reusable = self.reusable and not self._waiting
        elif len(self._waiting) > MAX_HEAD_BYTES:
            raise _garbage("a chunk of the page has no length")

    def _take_line(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > 2 * (SMALL_PIECES + self._size // CHUNK_BYTES):
            raise _garbage("the page comes in too many small chunks")
        if self._step is _Step.TRAILERS:
            self.complete = not line
        elif self._step is _Step.CONTENT_END:
            if line:
                raise _garbage("a chunk of the page is longer than its length")
            self._step = _Step.SIZE
        else:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise _garbage("a chunk of the page has no length")
            self._left = int(size[1], 16)
            self._step = _Step.CONTENT if self._left else _Step.TRAILERS

    def _add(self, piece: bytes) -> None:
        if piece:
            self._size += len(piece)
            if self._size > self._limit:
                raise self._too_large()
            self._pieces.append(piece)

    def _too_large(self) -> ScrapeError:
        return ScrapeError(Reason.TOO_LARGE, f"page over {self._limit} bytes (scrape.maxPageBytes)")


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line.decode("latin-1"))
        if match is None:
            raise _garbage("a header of the answer is broken")
        name, value = match[1].lower(), match[2].rstrip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _garbage(sentence: str) -> ScrapeError:
    return ScrapeError(Reason.GARBAGE, sentence)
