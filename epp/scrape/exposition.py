"""Reads wanted samples out of a metrics page, and nothing else of it.

A page of a model server has hundreds of lines, most of them histogram buckets; a handful say how loaded it is. One pass of
a compiled pattern finds the lines that begin with a wanted name, only those are parsed, and the parsed labels of a line
are remembered, since between two scrapes only values change.

Both forms are read, whatever the content type says: the Prometheus text format 0.0.4 and OpenMetrics 1.0 (`# EOF`,
exemplars, no `.0`). Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

REMEMBERED_LABELS = 4096
"""Label blocks that are remembered per finder; beyond it the memory starts anew (a page that invents labels)."""
LONGEST_REMEMBERED_BYTES = 2048
"""Longer label blocks are parsed each time, so that what is remembered stays under 10 MB."""

WHOLE_EVERY_READS = 16
"""A page is looked through whole once in so many reads, so that families that are new on it are found."""
MOST_LINES = 4096
"""Wanted lines on one page. Servers with hundreds of series have some dozens; more hold up everything else (4 µs each)."""
MOST_LABEL_BYTES = 256 << 10
"""Labels on one page that are not known yet, all together, since each byte of them is parsed (60 ns)."""
LOOKED_AT_BYTES = 256 << 10
"""What kind of page it is shows in so much of its beginning: on all that we know, within 2 KB."""
DRIFT_BYTES = 512
"""How far a line may have moved against its neighbour before it."""

_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_VALUE = r'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+'
_PAIR = re.compile(rf'({_NAME})[ \t]*+=[ \t]*+"({_VALUE})"')
_DIGITS = r"(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+"
_LABEL_BLOCK = re.compile(
    rf'[ \t]*+(\{{[ \t]*+(?:{_NAME}[ \t]*+=[ \t]*+"{_VALUE}"[ \t]*+(?:,[ \t]*+|(?=\}})))*+\}})?+'.encode()
)
_REST_OF_SAMPLE = re.compile(
    (
        rf"[ \t]*+([+-]?(?:{_DIGITS}|(?i:inf(?:inity)?|nan)))"  # the value
        r"(?:[ \t]++[+-]?[0-9][0-9.eE+-]*+)?+"  # a timestamp
        r"[ \t]*+(?:(?<=[ \t])#[^\n]*+)?+"  # an exemplar
        r"\r?(?:\n|\Z)"
    ).encode()
)
_ESCAPE = re.compile(r'\\([\\n"])')
_ANY_LINE = re.compile(
    rb"\n(?!\n)[ \t]*+(?:#[ \t]*+(?:HELP|TYPE|EOF|UNIT)\b"
    rb"|[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{[^\n]*\}[ \t]*+|[ \t]++)[+-]?(?:[0-9.]|Inf|NaN))"
)

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """One line of a page: the labels of a series, and its value as it stands there (it may be NaN or infinite)."""

    labels: Labels
    value: float


class Samples(NamedTuple):
    """What was found on one page.

    Attributes:
        families: Samples by name, in the order of the page; a name without samples is absent.
        bad_lines: Lines that begin with a wanted name and are no sample (cut off, or not of the grammar); they are left out.
        whole: False when the page has more than `MOST_LINES` or `MOST_LABEL_BYTES`, and the rest was not looked at.
    """

    families: Mapping[str, list[Sample]]
    bad_lines: int
    whole: bool = True


class PageLayout:
    """Where the wanted lines stood on the last page of one server; filled and used by `SampleFinder.find`.

    Attributes:
        heads: Name and labels of each line, from the line feed before them to the value behind them.
        offsets: Where each of them began.
        reads: Pages that were read by it since the last one that was looked through whole.
    """

    __slots__ = ("heads", "offsets", "reads")

    def __init__(self) -> None:
        self.heads: list[tuple[bytes, bytes, Labels]] = []
        self.offsets: list[int] = []
        self.reads = 0


class SampleFinder:
    """Finds the samples of certain names, matched exactly, on any number of pages."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.encode(): name for name in names}
        alternatives = b"|".join(re.escape(name) for name in sorted(self._names))
        self._first = re.compile(rb"[ \t]*+(" + alternatives + rb")(?=[{ \t])")
        self._others = re.compile(rb"\n(?!\n)" + self._first.pattern)
        self._labels: dict[bytes, Labels] = {}

    def find(self, page: bytes, layout: PageLayout | None = None) -> Samples:
        """The samples of the wanted names. Any bytes may be given; what is no sample is counted, never raised.

        Args:
            layout: Memory of the server that the page is from. Between two scrapes values change, lines hardly: with it
                most pages are not looked through but read at the places of the last one. A series that is new among
                others of its family is seen at once, a family that is new within `WHOLE_EVERY_READS` pages.
        """
        if layout is not None and layout.heads and layout.reads < WHOLE_EVERY_READS:
            again = self._find_again(page, layout)
            if again is not None:
                layout.reads += 1
                return again
        return self._find_in_whole(page, layout)

    def _find_in_whole(self, page: bytes, layout: PageLayout | None) -> Samples:
        families: dict[str, list[Sample]] = {}
        bad_lines = 0
        if not self._names:
            return Samples(families, 0)
        places: list[tuple[int, bytes, bytes, Labels]] = []
        first = self._first.match(page)
        heads = self._others.finditer(page)
        room = MOST_LABEL_BYTES
        for lines, head in enumerate(heads if first is None else chain((first,), heads)):
            labels, end, parsed_bytes = self._labels_at(page, head.end(), room)
            room -= parsed_bytes
            if lines >= MOST_LINES or room <= 0:
                return Samples(families, bad_lines, whole=False)
            rest = _REST_OF_SAMPLE.match(page, end)
            if rest is None:
                bad_lines += 1
                continue
            families.setdefault(self._names[head[1]], []).append(Sample(labels, float(rest[1])))
            places.append((head.start(), page[head.start() : end], head[1], labels))
        if layout is not None:
            usable = first is None and not bad_lines
            layout.heads = [(line, name, labels) for _, line, name, labels in places] if usable else []
            layout.offsets = [start for start, *_ in places]
            layout.reads = 0
        return Samples(families, bad_lines)

    def _find_again(self, page: bytes, layout: PageLayout) -> Samples | None:
        """Read the lines where they stood, moved by what values before them grew; None when anything else changed."""
        families: dict[str, list[Sample]] = {}
        offsets: list[int] = []
        drift, after, before_name = 0, -1, b""
        for (line, name, labels), offset in zip(layout.heads, layout.offsets, strict=True):
            guess = offset + drift
            at = page.find(line, max(0, guess - DRIFT_BYTES), guess + DRIFT_BYTES + len(line))
            rest = None if at < 0 else _REST_OF_SAMPLE.match(page, at + len(line))
            if rest is None:
                return None
            if at != after and (
                _names_line(page, after + 1, before_name) or _names_line(page, page.rfind(b"\n", 0, at) + 1, name)
            ):
                return None  # another series beside those that are known
            drift, after, before_name = at - offset, rest.end() - 1, name
            offsets.append(at)
            families.setdefault(self._names[name], []).append(Sample(labels, float(rest[1])))
        if _names_line(page, after + 1, before_name):
            return None
        layout.offsets = offsets
        return Samples(families, 0)

    def _labels_at(self, page: bytes, start: int, room: int) -> tuple[Labels, int, int]:
        """The labels that stand at `start`, where they end, and how many bytes were parsed for that.

        No labels and `start` when there is no whole block of them within `room` bytes.
        """
        end = page.find(b"}", start, start + LONGEST_REMEMBERED_BYTES) + 1
        known = self._labels.get(page[start:end])
        if known is not None:  # only whole blocks are remembered, so the first brace ended this one
            return known, end, 0
        block = _LABEL_BLOCK.match(page, start, start + room)
        if block is None or block[1] is None:
            line_end = page.find(b"\n", start, start + room)
            return {}, start, room if line_end < 0 <= len(page) - start - room else max(0, line_end - start)
        labels = {name: _unescape(value) for name, value in _PAIR.findall(block[1].decode(errors="replace"))}
        if len(block[1]) <= LONGEST_REMEMBERED_BYTES:
            if len(self._labels) >= REMEMBERED_LABELS:
                self._labels.clear()
            self._labels[block[1]] = labels
        return labels, block.end(), len(block[1])


def _names_line(page: bytes, start: int, name: bytes) -> bool:
    """Whether the line at `start` is a sample of `name`."""
    return (
        bool(name) and page.startswith(name, start) and page[start + len(name) : start + len(name) + 1] in (b"{", b" ", b"\t")
    )


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)


def looks_like_exposition(page: bytes) -> bool:
    """Whether any line in the `beginning` of the page is a sample or a comment of the exposition formats."""
    return _ANY_LINE.search(beginning(page)) is not None


def beginning(page: bytes) -> bytes:
    """The whole lines within `LOOKED_AT_BYTES`, each behind a line feed; a line that is longer than that is cut."""
    if len(page) <= LOOKED_AT_BYTES:
        return b"\n" + page
    end = page.rfind(b"\n", 0, LOOKED_AT_BYTES)
    return b"\n" + page[: end if end >= 0 else LOOKED_AT_BYTES]
