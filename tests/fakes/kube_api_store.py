"""What a fake API server knows: objects, their versions, and what happened to them."""

import copy
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

KubeJson = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the history; `before` and `after` are None where there was no object."""

    version: int
    collection: str
    before: KubeJson | None
    after: KubeJson | None

    def event_for(self, matches: Callable[[KubeJson], bool]) -> KubeJson | None:
        """What a watch with such selectors is sent; None when nothing."""
        was = self.before is not None and matches(self.before)
        if self.after is not None and matches(self.after):
            return {"type": "MODIFIED" if was else "ADDED", "object": self.after}
        if not was:
            return None
        assert self.before is not None
        last = copy.deepcopy(self.before if self.after is None else self.after)
        last["metadata"]["resourceVersion"] = str(self.version)
        return {"type": "DELETED", "object": last}


@dataclass(slots=True)
class KubeStore:
    """Objects by collection and name.

    Attributes:
        version: Of the last change.
        compacted: History up to here is forgotten.
    """

    version: int = 1000
    compacted: int = 0
    objects: dict[tuple[str, str], KubeJson] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)

    def put(self, collection: str, new: Mapping[str, Any]) -> Change:
        """Create or replace an object; one that is replaced keeps its uid, whatever `new` says, as in a real API server."""
        found = copy.deepcopy(dict(new))
        name = found["metadata"]["name"]
        before = self.objects.get((collection, name))
        if before is not None:
            found["metadata"]["uid"] = before["metadata"]["uid"]
        found["metadata"].setdefault("uid", str(uuid.uuid4()))
        return self._step(collection, name, before, found)

    def delete(self, collection: str, name: str) -> Change:
        """Remove an object; KeyError when there is none."""
        return self._step(collection, name, self.objects[collection, name], None)

    def _step(self, collection: str, name: str, before: KubeJson | None, after: KubeJson | None) -> Change:
        self.version += 1
        if after is None:
            del self.objects[collection, name]
        else:
            after["metadata"]["resourceVersion"] = str(self.version)
            self.objects[collection, name] = after
        step = Change(self.version, collection, before, after)
        self.history.append(step)
        return step

    def list(self, collection: str, matches: Callable[[KubeJson], bool]) -> list[KubeJson]:
        """The objects of a collection, by name."""
        return [each for (where, _), each in sorted(self.objects.items()) if where == collection and matches(each)]

    def since(self, version: int, collection: str) -> Iterator[Change]:
        """What happened after `version`."""
        return (step for step in self.history if step.version > version and step.collection == collection)

    def compact(self) -> None:
        """Forget the history; a change that is nobody's business makes everything before it too old."""
        self.version += 1
        self.compacted = self.version
        self.history.clear()

    def backup(self) -> "KubeStore":
        """A copy, to go back in time with."""
        return copy.deepcopy(self)


def selector(labels: str | None, fields: str | None) -> Callable[[KubeJson], bool]:
    """Whether an object matches `labelSelector` and `fieldSelector`."""
    tests = [_label_test(term) for term in _terms(labels)] + [_field_test(term) for term in _terms(fields)]
    return lambda found: all(test(found) for test in tests)


def _terms(text: str | None) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text or "") if term.strip()]


def _label_test(term: str) -> Callable[[KubeJson], bool]:
    def labels(found: KubeJson) -> Mapping[str, str]:
        return found["metadata"].get("labels") or {}

    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s*\((.*)\)", term):
        key, verb = match[1], match[2]
        values = {value.strip() for value in match[3].split(",")}
        return lambda found: (labels(found).get(key) in values) == (verb == "in")
    if match := re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*(\S*)", term):
        key, verb, value = match[1], match[2], match[3]
        return lambda found: (labels(found).get(key) == value) == (verb != "!=")
    if term.startswith("!"):
        return lambda found: term[1:] not in labels(found)
    return lambda found: term in labels(found)


def _field_test(term: str) -> Callable[[KubeJson], bool]:
    match = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term)
    assert match is not None, f"a field selector such as metadata.name=x, not {term}"
    path, verb, value = match[1], match[2], match[3]

    def test(found: KubeJson) -> bool:
        at: Any = found
        for key in path.split("."):
            at = at.get(key, "") if isinstance(at, dict) else ""
        return (str(at) == value) == (verb != "!=")

    return test
