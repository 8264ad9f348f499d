"""Label selectors: the syntax of `kubectl -l` and of the API's `labelSelector`, and what they match.

After k8s.io/apimachinery v0.37 (`pkg/labels/selector.go`), whose grammar and meaning this is to the letter: `in` and `notin`
are words like others where no operator can stand, a value may be empty, and `!=` and `notin` also match objects that do not
have the label.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from epp.config.wording import quote
from epp.errors import ConfigError

_TOKEN = re.compile(r"==|!=|[=!(),<>]|[^=!(),<> \t\r\n]+")
_SYMBOLS = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})
_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_DIGITS = re.compile(r"[0-9]+")
_NAME_MAX_CHARS = 63
_PREFIX_MAX_CHARS = 253
_INT64_MAX = 2**63 - 1


class Operator(Enum):
    """How a requirement compares; `=` and `==` are `in` with one value, `!=` is `notin` with one."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER = ">"
    LESS = "<"


_OF_ONE_VALUE = {
    "=": Operator.IN,
    "==": Operator.IN,
    "!=": Operator.NOT_IN,
    ">": Operator.GREATER,
    "<": Operator.LESS,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label.

    Attributes:
        values: Sorted, each once; at least one for `in` and `notin`, one whole number for `>` and `<`, else none.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets it."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER | Operator.LESS:
                number, bound = _whole_number(value), int(self.values[0])
                return number is not None and (number > bound if self.operator is Operator.GREATER else number < bound)

    def render(self) -> str:
        """As `labelSelector` takes it."""
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.GREATER | Operator.LESS:
                return f"{self.key}{self.operator.value}{self.values[0]}"
            case Operator.IN | Operator.NOT_IN if len(self.values) == 1:
                return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{self.values[0]}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions that all have to be met; none at all matches everything.

    Attributes:
        requirements: In a fixed order, each once, so that selectors that are written differently compare equal.
    """

    requirements: tuple[Requirement, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> "LabelSelector":
        """Read a selector such as `app=vllm,tier in (a,b),!canary`.

        Args:
            where: For errors.

        Raises:
            ConfigError: It is none.
        """
        return cls._of(_Parser(text, where).requirements())

    @classmethod
    def of_labels(cls, labels: Mapping[str, str], where: str) -> "LabelSelector":
        """The selector of objects that have all these labels.

        Raises:
            ConfigError: A key or a value cannot be that of a label; all faults.
        """
        problems = [f"{where}: {fault}" for key, value in labels.items() for fault in (*_key_fault(key), *_value_fault(value))]
        if problems:
            raise ConfigError(*problems)
        return cls._of([Requirement(key, Operator.IN, (value,)) for key, value in labels.items()])

    @classmethod
    def _of(cls, requirements: list[Requirement]) -> "LabelSelector":
        return cls(tuple(sorted(set(requirements), key=lambda each: (each.key, each.operator.value, each.values))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def render(self) -> str:
        """As the API's parameter `labelSelector` takes it (not yet encoded for a URL)."""
        return ",".join(requirement.render() for requirement in self.requirements)


class _Parser:
    """Reads the tokens of one selector from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._tokens = [(found.group(), found.start()) for found in _TOKEN.finditer(text)]
        self._next = 0

    def requirements(self) -> list[Requirement]:
        found: list[Requirement] = []
        while self._tokens:
            found.append(self._requirement())
            if self._peek() is None:
                break
            self._expect(",", "a comma or the end")
        return found

    def _requirement(self) -> Requirement:
        absent = self._peek() == "!"
        if absent:
            self._next += 1
        key = self._word("a label's key" if absent else "a label's key, or ! and a key")
        self._refuse(_key_fault(key))
        if absent or self._peek() in (None, ","):
            return Requirement(key, Operator.DOES_NOT_EXIST if absent else Operator.EXISTS)
        operator = self._peek()
        if operator in ("in", "notin"):
            self._next += 1
            return Requirement(key, Operator(operator), tuple(sorted(self._value_set())))
        if operator in _OF_ONE_VALUE:
            self._next += 1
            return Requirement(key, _OF_ONE_VALUE[operator], (self._one_value(operator),))
        raise self._wrong("one of =, ==, !=, in, notin, <, > or a comma")

    def _one_value(self, operator: str) -> str:
        value = "" if self._peek() in (None, ",") else self._word("a value")
        self._refuse(_value_fault(value))
        if operator in ("<", ">") and _whole_number(value) is None:
            self._next -= bool(value)
            raise self._wrong(f"a whole number after {operator}")
        return value

    def _value_set(self) -> set[str]:
        """The values in parentheses; nothing between two commas, or between comma and parenthesis, is the empty value."""
        self._expect("(", "( and values")
        values: set[str] = set()
        while True:
            value = "" if self._peek() in (",", ")") else self._word("a value, a comma or )")
            self._refuse(_value_fault(value))
            values.add(value)
            if self._peek() == ")":
                self._next += 1
                return values
            self._expect(",", "a comma or )")

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _word(self, expected: str) -> str:
        token = self._peek()
        if token is None or token in _SYMBOLS:
            raise self._wrong(expected)
        self._next += 1
        return token

    def _expect(self, symbol: str, expected: str) -> None:
        if self._peek() != symbol:
            raise self._wrong(expected)
        self._next += 1

    def _wrong(self, expected: str) -> ConfigError:
        if self._next == len(self._tokens):
            return ConfigError(f"{self._where}: expected {expected}, found the end")
        token, start = self._tokens[self._next]
        return ConfigError(f"{self._where}: expected {expected}, found {quote(token)} at character {start + 1}")

    def _refuse(self, faults: tuple[str, ...]) -> None:
        if faults:
            raise ConfigError(*(f"{self._where}: {fault}" for fault in faults))


def _key_fault(key: str) -> tuple[str, ...]:
    prefix, slash, name = key.rpartition("/")
    good_prefix = not slash or (len(prefix) <= _PREFIX_MAX_CHARS and _SUBDOMAIN.fullmatch(prefix))
    if good_prefix and len(name) <= _NAME_MAX_CHARS and _NAME.fullmatch(name):
        return ()
    return (f"expected a label's key such as app or example.com/app, found {quote(key)}",)


def _value_fault(value: str) -> tuple[str, ...]:
    if not value or (len(value) <= _NAME_MAX_CHARS and _NAME.fullmatch(value)):
        return ()
    return (f"expected a label's value of at most {_NAME_MAX_CHARS} letters, digits, '-', '_' and '.', found {quote(value)}",)


def _whole_number(text: str | None) -> int | None:
    if text is None or len(text) > _NAME_MAX_CHARS or not _DIGITS.fullmatch(text) or int(text) > _INT64_MAX:
        return None
    return int(text)
