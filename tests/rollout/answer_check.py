"""Whether a streamed answer is whole."""

import re

_TOKEN = re.compile(rb'"text":"(?!")')
_USAGE = re.compile(rb'"completion_tokens":([0-9]+)')
_END = b"data: [DONE]\n\n"


class AnswerCheck:
    """Reads an answer of /v1/completions piece by piece; a simulated server puts one token into each event.

    A real one may put several, or none that can be written yet, so what it says of the usage at the end counts more.

    Attributes:
        tokens: How many have come, in events that are complete: one for each event with a text.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._rest = b""
        self._ended = False
        self._used_tokens: int | None = None
        self._error: str | None = None

    def feed(self, piece: bytes) -> None:
        """The next piece of the body."""
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            self.tokens += len(_TOKEN.findall(event))
            if usage := _USAGE.search(event):
                self._used_tokens = int(usage[1])
            self._ended = event + b"\n\n" == _END
            if b'"error"' in event or b'"abort"' in event:
                self._error = "an error in the stream"

    def fault(self, tokens: int) -> str | None:
        """What is wrong with it, now that it has ended, if `tokens` were asked for; None: nothing."""
        if self._error is not None:
            return self._error
        if not self._ended or self._rest:
            return "no end mark"
        found = self.tokens if self._used_tokens is None else self._used_tokens
        return None if found == tokens else f"{'fewer' if found < tokens else 'more'} tokens than asked for"
