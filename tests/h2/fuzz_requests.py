"""Header blocks that a fuzzing peer sends: good requests, and such that go wrong in ways bytes would take long to find."""


def literal(name: bytes, value: bytes) -> bytes:
    """A field that leaves the peer's table alone."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def block(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a request: static `:method POST` and `:scheme http`, the rest literal."""
    fields = ((b":path", path), (b"content-type", b"application/grpc"), *more)
    return b"\x83\x86" + b"".join(literal(name, value) for name, value in fields)


BLOCKS = (
    block(b"/echo"),
    block(b"/late"),
    block(b"/refuse"),
    block(b"/late", (b"grpc-timeout", b"1S")),
    block(b"/echo", (b"content-length", b"8")),
    block(b"/unknown"),
    b"\x82\x86" + literal(b":path", b"/echo"),  # GET
    block(b"/echo", (b"Upper", b"1")),
    b"\x83\x86" + b"\x44\x05/echo" + b"\x5f\x10application/grpc" + b"\x40\x03x-a\x01" + b"1",  # inserts into the table
    b"\x83\x86\xc0\xbf\xbe",  # names what the block above inserts
    b"\x3e" + block(b"/echo"),  # resizes the table
    b"\x20" + block(b"/echo"),
)
