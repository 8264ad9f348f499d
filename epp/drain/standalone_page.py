"""Reads an exposition for images that have Python and neither `epp` nor awk; `page.awk` does the same.

The printed script runs this text with `python3 -c`. Arguments: the kind of page (`text`, or `count:MEMBER` for JSON), and what
counts, as JSON. It prints the numbers of waiting and of running requests, each `-` when it is not there, and `blank` or `page`.
"""

import json
import re
import sys
from typing import Any

_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*\"((?:[^\"\\]|\\.)*)\"")
_NUMBER = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[ \t\r]|$)")
_HEAD = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})?[ \t]*")


def requests_on(page: str, what: dict[str, Any]) -> tuple[float | None, float | None]:
    """Waiting and running requests, each None when it is not there.

    Args:
        what: `replicas`: labels whose series tell the same again; `terms`: lists of quantity, alternative, name and conditions.
    """
    names = {term[2] for term in what["terms"]}
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in page.splitlines():
        head = _HEAD.match(line.lstrip(" \t"))
        if head is None or head[1] not in names:
            continue
        number = _NUMBER.match(line.lstrip(" \t"), head.end())
        if number is None or float(number[0]) > 1e9:
            continue  # infinite, not a number, negative or more than a server can have: unknown is better than wrong
        labels = {name: re.sub(r"\\([\\n\"])", _unescaped, value) for name, value in _LABEL.findall(head[2] or "")}
        series.setdefault(head[1], []).append((labels, float(number[0])))
    return _number("waiting", what, series), _number("running", what, series)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _number(quantity: str, what: dict[str, Any], series: dict[str, list[tuple[dict[str, str], float]]]) -> float | None:
    terms = [term for term in what["terms"] if term[0] == quantity]
    for alternative in sorted({term[1] for term in terms}):
        sums = [_sum(term, what["replicas"], series.get(term[2], [])) for term in terms if term[1] == alternative]
        known = [each for each in sums if each is not None]
        if known:
            return sum(known)
    return None


def _sum(term: list[Any], replicas: list[str], samples: list[tuple[dict[str, str], float]]) -> float | None:
    ignored = {*replicas, "priority", *(label for label, operator, _ in term[3] if operator == "=")}
    engines: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    for labels, number in samples:
        if all(_fulfils(labels.get(label, ""), operator, value) for label, operator, value in term[3]):
            parts = engines.setdefault(frozenset(each for each in labels.items() if each[0] not in ignored), {})
            priority = labels.get("priority", "")
            parts[priority] = max(number, parts.get(priority, number))
    return sum(parts[""] if "" in parts else sum(parts.values()) for parts in engines.values()) if engines else None


def _fulfils(found: str, operator: str, value: str) -> bool:
    same = re.fullmatch(value, found) is not None if "~" in operator else found == value
    return same is not operator.startswith("!")


if __name__ == "__main__":
    text = sys.stdin.buffer.read().decode(errors="replace")
    kind, _, member = sys.argv[1].partition(":")
    if kind == "count":
        at_work = len(re.findall(rf"\"{member}\" *: *true", text))
        known = f'"{member}"' in text
        answer = f"- {at_work if known else '-'} page"
    else:
        numbers = ["-" if each is None else f"{each:.10g}" for each in requests_on(text, json.loads(sys.argv[2]))]
        answer = " ".join([*numbers, "page" if text.strip() else "blank"])
    sys.stdout.write(answer + "\n")
