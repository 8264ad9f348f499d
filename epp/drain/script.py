"""`epp drain` as a POSIX sh script, for images that have neither Python nor `epp`.

`script.sh` is the script without its values; `page.awk`, `standalone_page.py`, `standalone_call.py` and `call.bash` are
programs that it carries. The same plan gives the same text.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from importlib.resources import files

from epp.drain.plan import Alternatives, DrainPlan, LabelCondition, PagePlan, SeriesTerm
from epp.errors import ConfigError

MOST_BYTES = 8 << 20
_SAME_EVERYWHERE = re.compile(r"(?:[^\\{}()\[\]*+?|]|[()|]|[.\])\w][*+?](?![*+?])|\.|\[\^?[\w.-]+\])*")
"""Patterns that mean the same in Python, in awk and in PromQL."""
_HEAD = """\
#!/bin/sh
# Waits, as preStop hook of a model server, until it is idle; ends with 0 whatever happens. Needs no `epp` in the image.
# Made by: epp drain {words}
"""


def render(plan: DrainPlan, words: Iterable[str]) -> str:
    """The script.

    Args:
        words: The flags that it was asked for with, for its head.

    Raises:
        ConfigError: A metric cannot be selected in a script.
    """
    shown = " ".join(shlex.quote(" ".join(word.split())) for word in words)
    body = _text("script.sh").replace("#@values@", "\n".join(_values(plan)))
    return _HEAD.format(words=shown) + body


def _values(plan: DrainPlan) -> Iterator[str]:
    """Assignments, one a line."""
    page = plan.page
    pages = " ".join(
        f"{'text' if source.counted_member is None else 'count:' + source.counted_member}|{source.url}"
        for source in page.sources
    )
    port = plan.url.rpartition(":")[2] if plan.url.rpartition(":")[2].isdecimal() else "443" if "https" in plan.url else "80"
    values: dict[str, str | int] = {
        "ENGINE": plan.engine,
        "URL": plan.url,
        "PORT": port,
        "SERVER_KNOWN": _flag(page.server_known),
        "PAGES": pages,
        "NEEDS_RUNNING": _flag(bool(page.running)),
        "BLANK_IS_IDLE": _flag(page.blank_is_idle),
        "PAGE_FREEZES": _flag(page.freezes),
        "PAGE_LAG": _centiseconds(page.lag_s),
        "PICKER_URLS": " ".join(plan.picker_urls),
        "ENDPOINTS": " ".join(plan.endpoints),
        "TOKEN_FILE": plan.token_file or "",
        "KEEP": f"{plan.keep_s:g}s",
        "MIN_WAIT": _centiseconds(plan.min_wait_s),
        "MAX_WAIT": _centiseconds(plan.max_wait_s),
        "INTERVAL": max(1, _centiseconds(plan.interval_s)),
        "IDLE_SAMPLES": plan.idle_samples,
        "CALL_LIMIT": _centiseconds(plan.call_s),
        "LOG_FILE": plan.log_file or "",
        "MOST_BYTES": MOST_BYTES,
        "TERMS": json.dumps(_as_json(page), sort_keys=True),
    }
    yield "# Times in centiseconds."
    for name, value in values.items():
        yield f"{name}={value if isinstance(value, int) else _quoted(value)}"
    programs = {
        "AWK_PAGE": _awk_terms(page) + _text("page.awk"),
        "PYTHON_PAGE": _text("standalone_page.py"),
        "PYTHON_CALL": _text("standalone_call.py"),
        "BASH_CALL": _text("call.bash"),
    }
    for name, text in programs.items():
        yield ""
        yield f"# shellcheck disable=SC2016 # a program in another language\n{name}={_quoted(text)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _flag(value: bool) -> str:
    return "yes" if value else ""


def _centiseconds(seconds: float) -> int:
    return round(seconds * 100)


def _text(name: str) -> str:
    return (files("epp.drain") / name).read_text("utf-8")


def _terms(page: PagePlan) -> Iterator[tuple[str, int, SeriesTerm]]:
    quantities: tuple[tuple[str, Alternatives], ...] = (("waiting", page.waiting), ("running", page.running))
    for quantity, alternatives in quantities:
        for number, terms in enumerate(alternatives, 1):
            for term in terms:
                yield quantity, number, term


def _as_json(page: PagePlan) -> dict[str, object]:
    return {
        "replicas": sorted(page.replica_labels),
        "terms": [
            [quantity, number, term.name, [[each.label, each.operator, each.value] for each in term.conditions]]
            for quantity, number, term in _terms(page)
        ],
    }


def _awk_terms(page: PagePlan) -> str:
    lines = [f"  replica[{_awk_text(label)}] = 1" for label in sorted(page.replica_labels)]
    for quantity, number, term in _terms(page):
        lines.append(f"  term({_awk_text(quantity)}, {number}, {_awk_text(term.name)})")
        lines += [
            f"  want({_awk_text(each.label)}, {_awk_text(each.operator)}, {_awk_text(_pattern(term, each))})"
            for each in term.conditions
        ]
    return "BEGIN {\n" + "\n".join(lines) + "\n}\n"


def _pattern(term: SeriesTerm, condition: LabelCondition) -> str:
    if "~" in condition.operator and not _SAME_EVERYWHERE.fullmatch(condition.value):
        raise ConfigError(
            f"{term.name}: expected for the script a pattern of letters, . * + ? | ( ) and [abc], found {condition.value!r}"
        )
    return condition.value


def _awk_text(text: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"metric: expected for the script a selector that can be printed, found {text!r}")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
