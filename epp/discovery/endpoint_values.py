"""Reading single values of the endpoints file. Each function raises `FaultError` when the value is none of its kind."""

import math

from epp.config.yaml_tree import YamlMap, YamlNode, YamlScalar
from epp.discovery.host_port import parse_hostname, parse_ip, parse_port

SCHEMES = ("http", "https")
NAME_MAX_CHARS = 253


class FaultError(Exception):
    """A value is not what it should be.

    Attributes:
        expected: What it should be; with `complete`, the whole sentence.
    """

    def __init__(self, expected: str, *, complete: bool = False) -> None:
        super().__init__(expected)
        self.expected = expected
        self.complete = complete


def given(parent: YamlMap, key: str) -> YamlNode | None:
    """The value of `key`; None when it is absent or null."""
    node = parent.entries.get(key)
    return None if isinstance(node, YamlScalar) and node.is_null else node


def text_of(node: YamlNode) -> str | None:
    """The text of a scalar as it is written; None when it is a list, a map or null."""
    return node.text if isinstance(node, YamlScalar) and not node.is_null else None


def read_name(node: YamlNode) -> str:
    text = text_of(node)
    if not text or len(text) > NAME_MAX_CHARS or not text.isprintable() or text != text.strip():
        raise FaultError(f"a name of 1 to {NAME_MAX_CHARS} printable characters")
    return text


def read_address(node: YamlNode) -> str:
    text = text_of(node) or ""
    address = parse_ip(text) or parse_hostname(text)
    if address is None:
        raise FaultError("an IPv4 address, an IPv6 address or a hostname")
    return address


def read_port(node: YamlNode) -> int:
    port = parse_port(text_of(node) or "")
    if port is None:
        raise FaultError("a port from 1 to 65535")
    return port


def read_path(node: YamlNode) -> str:
    text = text_of(node) or ""
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise FaultError("a path such as /metrics")
    return text


def read_scheme(node: YamlNode) -> str:
    text = text_of(node)
    if text not in SCHEMES:
        raise FaultError(f"one of {', '.join(SCHEMES)}")
    return text


def read_weight(node: YamlNode) -> float:
    weight = node.number if isinstance(node, YamlScalar) else None
    if weight is None or not 0 < weight < math.inf:
        raise FaultError("a number greater than 0")
    return weight


def read_boolean(node: YamlNode) -> bool:
    boolean = node.boolean if isinstance(node, YamlScalar) else None
    if boolean is None:
        raise FaultError("true or false")
    return boolean
