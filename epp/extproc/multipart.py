"""Small text fields of a `multipart/form-data` body, without reading the files in it (RFC 7578, RFC 2046 section 5.1)."""

import re
from collections.abc import Sequence

WINDOW_BYTES = 65_536
"""Only this much of the beginning and of the end is looked at: text fields are small and stand before or after the file."""
MAX_FIELD_BYTES = 4096
MAX_PART_HEADERS_BYTES = 4096

_BOUNDARY = re.compile(r'[;\s]boundary=(?:"([^"\r\n]{1,200})"|([^;,\s"]{1,200}))', re.IGNORECASE)
_FIELD_NAME = re.compile(rb'[;\s]name=(?:"([^"\r\n]*)"|([^;\s"]+))', re.IGNORECASE)


def form_fields(content_type: str, body: Sequence[bytes]) -> dict[str, bytes]:
    """The text fields near either end of a form, by name; of several with one name the last.

    A field that lies between two files, more than `WINDOW_BYTES` from both ends, is not found. Copies at most two
    windows, whatever the size of the files, and takes time linear in the windows.

    Args:
        content_type: The header's value, with its `boundary`.
        body: The body in pieces of any size.

    Returns:
        Empty when there is no boundary, no field, or the body is not such a form.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return {}
    delimiter = b"--" + (boundary[1] or boundary[2]).encode("utf-8", "surrogateescape")
    head, tail = _ends(body)
    fields = _fields_in(head, delimiter)
    fields.update(_fields_in(tail, delimiter))
    return fields


def _ends(body: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The first and the last `WINDOW_BYTES`; of a short body all of it and nothing."""
    total_bytes = sum(map(len, body))
    if total_bytes <= 2 * WINDOW_BYTES:
        return b"".join(body), b""
    head = bytearray()
    for piece in body:
        head += piece[: WINDOW_BYTES - len(head)]
        if len(head) == WINDOW_BYTES:
            break
    pieces_from_end: list[bytes] = []
    missing_bytes = WINDOW_BYTES
    for piece in reversed(body):
        if piece:
            pieces_from_end.append(piece[-missing_bytes:])
            missing_bytes -= len(pieces_from_end[-1])
        if not missing_bytes:
            break
    return bytes(head), b"".join(reversed(pieces_from_end))


def _fields_in(window: bytes, delimiter: bytes) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    part_ends_with = b"\r\n" + delimiter
    at = window.find(delimiter)
    while at >= 0:
        headers_at = at + len(delimiter)
        end = window.find(part_ends_with, headers_at)
        value_at = window.find(b"\r\n\r\n", headers_at, headers_at + MAX_PART_HEADERS_BYTES)
        if value_at >= 0 and value_at + 4 <= end <= value_at + 4 + MAX_FIELD_BYTES:
            name = _text_field_name(window[headers_at:value_at])
            if name is not None:
                fields[name] = window[value_at + 4 : end]
        at = end if end < 0 else end + 2
    return fields


def _text_field_name(part_headers: bytes) -> str | None:
    """The name of the field, None for a file and for a part without a name."""
    if b"filename" in part_headers.lower():
        return None
    name = _FIELD_NAME.search(part_headers)
    return None if name is None else (name[1] or name[2] or b"").decode("utf-8", "replace")
