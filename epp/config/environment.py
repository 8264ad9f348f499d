"""Variables of the environment that Kubernetes sets, and those that were meant for us but are misspelt.

For each Service of the namespace the kubelet gives every container variables made from its name: a Service `epp-grpc`
gives `EPP_GRPC_PORT=tcp://10.0.0.1:9002`, which is also the name of the variable behind `--grpc-port`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from epp.config import kinds
from epp.config.kinds import Kind
from epp.config.wording import show

PREFIX = "EPP_"
CLOSENESS = 0.8
"""How like a known variable an unknown one must be to be taken for a misspelling (`difflib` ratio)."""

_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")
_SERVICE_NAME = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")


def is_service_link(kind: Kind[object], value: str) -> bool:
    """Whether Kubernetes set the variable of a port, for a Service."""
    return kind is kinds.PORT and _SERVICE_URL.match(value) is not None


def remarks(environment: Mapping[str, str], known: Mapping[str, Kind[object]]) -> Iterator[str]:
    """What the user should know about the variables that are not listened to, one sentence each.

    Args:
        known: The variables that are listened to, with how each is written.
    """
    for name, value in sorted(environment.items()):
        if name in known:
            if is_service_link(known[name], value):
                yield (
                    f"{name}: ignored, {show(value)} is what Kubernetes sets for a Service of that name "
                    "(enableServiceLinks: false in the pod turns this off)"
                )
        elif name.startswith(PREFIX) and not _SERVICE_URL.match(value) and not _SERVICE_NAME.fullmatch(name):
            yield from _misspelt(name, known.keys())


def _misspelt(name: str, known: AbstractSet[str]) -> Iterator[str]:
    for close in difflib.get_close_matches(name, sorted(known), n=1, cutoff=CLOSENESS):
        yield f"{show(name)[1:-1]}: unknown variable, did you mean {close}"
