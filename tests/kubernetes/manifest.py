"""Kubernetes objects as the tests write and read them."""

from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""One object, as in JSON."""
