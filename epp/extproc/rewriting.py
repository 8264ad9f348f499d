"""Which model a request gets instead of the one that its body names (InferenceModelRewrite), and the body that says so."""

from collections.abc import Mapping

from epp.extproc.exchange import Exchange
from epp.extproc.model_value import model_in_part, model_value
from epp.extproc.request_body import RequestBody, may_be_json
from epp.telemetry.outcome import RequestOutcome

NOT_REWRITTEN = "not_rewritten"
"""Reason in `epp_bodies_not_inspected_total`: rules are in force, and the body could not be changed in the way it came."""
FORM = "a form (multipart/form-data) names a model that a rewrite rule matches, and goes on unchanged"
STREAMED_WITHOUT_LENGTH = (
    "a body without content-length came in pieces in mode STREAMED, and goes on unchanged; FULL_DUPLEX_STREAMED can rewrite it"
)
UNSEEN_MODEL = "mode BUFFERED_PARTIAL showed a part of a body that names no model, and it goes on unchanged"


def rewritten(exchange: Exchange, outcome: RequestOutcome, read: RequestBody, body: bytes, *, partial: bool) -> bytes | None:
    """The body with the model that the rules choose for the request; None when it stays as it is.

    Sets the outcome's target model if a rule decides, also when it decides for the model that is there already. A body that
    names no model (or none that can be one: no text, empty, not printable) stays as it is, whatever the rules say.

    Args:
        read: What the body says.
        body: As much of it as Envoy shows.
        partial: It may not be all.
    """
    if read.opaque:
        return None
    name = read.model
    place = None
    if name is None and partial:
        found = model_in_part(body)
        if found is None:
            give_up(exchange, UNSEEN_MODEL)
            return None
        name, place = found
        outcome.model = name
    rewrite = exchange.rewrites.choose(name)
    if rewrite is None or name is None:
        return None
    if place is None:
        place = model_value(body)
    if place is None:
        give_up(exchange, FORM)
        return None
    outcome.target_model = rewrite.model
    exchange.observer.model_rewritten(rewrite.name, name, rewrite.model)
    return None if rewrite.model == name else place.replaced(body, rewrite.model)


def may_be_rewritten(headers: Mapping[str, str]) -> bool:
    """Whether the body that these headers announce is worth holding back."""
    return may_be_json(headers.get("content-type"), headers.get("content-encoding"))


def give_up(exchange: Exchange, why: str) -> None:
    """A body goes on as it came although a rule may match its model: count it, and say so the first time."""
    exchange.observer.body_not_inspected(NOT_REWRITTEN)
    exchange.warn_once(why)
