"""Whether an answer is whole: what a careful client checks."""

import msgspec

DONE = b"data: [DONE]"
_GOOD_ENDS = frozenset({"stop", "length"})


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def fault_in_answer(body: bytes) -> str | None:
    """What is wrong with the body of a 200 that is not a stream; None when it is a whole answer."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        return "200 without an answer in it"
    ends = {choice.finish_reason for choice in answer.choices}
    if not ends or not ends <= _GOOD_ENDS:
        return f"200 with finish_reason {', '.join(sorted(map(str, ends))) or 'missing'}"
    return None


class StreamCheck:
    """Reads a stream of server-sent events in any pieces.

    Attributes:
        ended: Whether the end mark came.
        fault: What the stream itself said went wrong, or None.
    """

    def __init__(self) -> None:
        self.ended = False
        self.fault: str | None = None
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Take in the next piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._read(line.rstrip(b"\r"))

    def _read(self, line: bytes) -> None:
        if line == DONE:
            self.ended = True
        elif b'"error"' in line:
            self.fault = "error event in the stream"
        elif b'"finish_reason":"abort"' in line:
            self.fault = "stream with finish_reason abort"
