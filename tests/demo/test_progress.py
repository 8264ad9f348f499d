"""What is seen while the demo runs."""

import re

from epp.demo.progress import LiveScreen, PlainScreen, ServerLine, Snapshot

SNAPSHOT = Snapshot(
    at_s=7.04,
    servers=[
        ServerLine(name="a", engine="vllm", state="ready", in_flight=3, answered=40, p50_s=0.8),
        ServerLine(name="b", engine="sglang", state="draining", in_flight=1, answered=20, p50_s=None),
        ServerLine(name="c", engine="ollama", state="down", in_flight=0, answered=7, p50_s=1.5),
    ],
    finished_per_s=29.6,
    open_requests=4,
    answered=67,
    failed=2,
)


class Terminal:
    """Follows the text and the two movements that a live screen uses."""

    def __init__(self) -> None:
        self.lines = [""]

    def write(self, text: str) -> None:
        for part in re.split(r"(\x1b\[\d*[FJ]|\n)", text):
            if part == "\n":
                self.lines.append("")
            elif part.endswith("F") and part.startswith("\x1b"):
                del self.lines[len(self.lines) - int(part[2:-1]) :]
                self.lines[-1] = ""
            elif not part.startswith("\x1b"):
                self.lines[-1] += part


def test_a_plain_screen_has_one_line_for_each_event_and_each_snapshot() -> None:
    text: list[str] = []
    screen = PlainScreen(text.append)

    screen.say(1.26, "something happens")
    screen.show(SNAPSHOT)
    screen.close()

    assert text == [
        "  1.3 s  something happens\n",
        "  7.0 s   30/s    4 open (a 3, b 1 draining, c down)  67 answered, 2 failed\n",
    ]


def test_a_live_table_is_drawn_over_itself_with_the_events_above_it() -> None:
    terminal = Terminal()
    screen = LiveScreen(terminal.write, lambda: 80)

    screen.show(SNAPSHOT)
    once = list(terminal.lines)
    screen.show(SNAPSHOT)
    assert terminal.lines == once

    screen.say(7.5, "something happens")
    assert terminal.lines == ["  7.5 s  something happens", *once]
    assert "b       sglang  draining          1        20       -  #" in terminal.lines


def test_a_live_table_leaves_nothing_but_the_events() -> None:
    terminal = Terminal()
    screen = LiveScreen(terminal.write, lambda: 80)

    screen.show(SNAPSHOT)
    screen.say(7.5, "something happens")
    screen.close()
    screen.close()

    assert terminal.lines == ["  7.5 s  something happens", ""]


def test_lines_of_a_live_table_never_wrap() -> None:
    terminal = Terminal()

    LiveScreen(terminal.write, lambda: 30).show(SNAPSHOT)

    assert max(map(len, terminal.lines)) == 29
