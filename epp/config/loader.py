"""Flags, environment and file → `Settings`, with every fault named."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from epp.config.document import Document
from epp.config.settings import GROUPS, Settings, SourceSettings, declared
from epp.errors import ConfigError

MESSAGE_ROOM_BYTES = 65_536
"""What a message may hold besides a whole body."""
GRPCIO_MESSAGE_MAX_BYTES = 2**31 - 1
"""grpcio takes the size as a C int."""
STALENESS_INTERVALS = 3
"""A staleness threshold under this many scrape intervals makes everything look stale by design."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where each came from.

    Attributes:
        origins: (group, attribute) → `flag --x`, `environment EPP_X`, name of the file, or `default`.
        notes: What was changed to fit or not listened to, one sentence each, to be told at the start.
    """

    settings: Settings
    origins: Mapping[tuple[str, str], str]
    notes: tuple[str, ...] = ()


def load_settings(
    given: Mapping[tuple[str, str], tuple[str, Any]],
    document: Document | None,
    *,
    needs_source: bool = True,
    notes: Sequence[str] = (),
) -> Loaded:
    """Put the settings together.

    Args:
        given: What flags and environment say, as (group, attribute) → (origin, value), values already read.
        document: The configuration file, if there is one.
        needs_source: Whether exactly one source of endpoints must be named.
        notes: What reading flags and environment had to remark.

    Raises:
        ConfigError: Settings that contradict one another.
    """
    file_values = {} if document is None else document.values
    file_name = "" if document is None else document.where
    origins: dict[tuple[str, str], str] = {}
    groups: dict[str, dict[str, Any]] = {name: {} for name, _ in GROUPS}
    for group, attribute, _, default in declared():
        key = group, attribute
        if key in given:
            origins[key], groups[group][attribute] = given[key]
        elif key in file_values:
            origins[key], groups[group][attribute] = file_name, file_values[key]
        else:
            origins[key], groups[group][attribute] = "default", default
    settings = Settings(**{name: cls(**groups[name]) for name, cls in GROUPS})
    settings, lifted = _with_fitting_staleness(settings, origins)
    problems = [*_contradictions(settings, origins), *(_sources(settings.source) if needs_source else ())]
    if problems:
        raise ConfigError(*problems)
    return Loaded(settings, origins, (*notes, *lifted, *_without_effect(settings, origins)))


def _with_fitting_staleness(settings: Settings, origins: dict[tuple[str, str], str]) -> tuple[Settings, tuple[str, ...]]:
    """A longer interval with no word on staleness lifts the default threshold along."""
    least_s = STALENESS_INTERVALS * settings.scrape.interval_s
    if origins["scrape", "staleness_s"] != "default" or settings.scrape.staleness_s >= least_s:
        return settings, ()
    note = (
        f"scrape.stalenessThreshold: lifted from {settings.scrape.staleness_s:g}s to {least_s:g}s, "
        f"{STALENESS_INTERVALS} scrape intervals"
    )
    return replace(settings, scrape=replace(settings.scrape, staleness_s=least_s)), (note,)


def _contradictions(settings: Settings, origins: Mapping[tuple[str, str], str]) -> Iterator[str]:
    scrape, server, requests = settings.scrape, settings.server, settings.requests
    if scrape.enabled and scrape.staleness_s < STALENESS_INTERVALS * scrape.interval_s:
        yield (
            f"{origins['scrape', 'staleness_s']}: scrape.stalenessThreshold: expected at least {STALENESS_INTERVALS} scrape "
            f"intervals of {scrape.interval_s:g}s, found {scrape.staleness_s:g}s"
        )
    if server.enable_cert_reload and server.cert_path is None:
        yield "--enable-cert-reload: expected --cert-path with it, found none"
    if server.cert_path is not None and not server.secure_serving:
        yield "--cert-path: expected --secure-serving=true with it, found false"
    if server.client_ca is not None and not server.secure_serving:
        yield "--client-ca: expected --secure-serving=true with it, found false"
    if server.transport == "grpcio":
        for flag, value in (("--grpc-socket", server.grpc_socket), ("--client-ca", server.client_ca)):
            if value is not None:
                yield f"{flag}: expected --transport=socket with it, found grpcio"
    limits = settings.limits
    if server.transport == "grpcio" and limits.max_message_bytes > GRPCIO_MESSAGE_MAX_BYTES:
        yield (
            f"limits.maxMessageBytes: expected at most {GRPCIO_MESSAGE_MAX_BYTES} with --transport=grpcio, "
            f"found {limits.max_message_bytes}"
        )
    if limits.max_message_bytes < limits.max_request_body_bytes + MESSAGE_ROOM_BYTES:
        yield (
            f"limits.maxMessageBytes: expected at least limits.maxRequestBodyBytes and {MESSAGE_ROOM_BYTES} more, "
            f"found {limits.max_message_bytes}"
        )
    source = settings.source
    if source.endpoint_selector is not None and not source.endpoint_target_ports:
        yield "--endpoint-selector: expected --endpoint-target-ports with it, found none"
    if source.endpoint_target_ports and source.endpoint_selector is None:
        yield "--endpoint-target-ports: expected --endpoint-selector with it, found none"
    if requests.strict and not requests.models:
        yield "requests.strict: expected requests.models with it, found no models"


def _sources(source: SourceSettings) -> Iterator[str]:
    named = {
        "--pool-name": source.pool_name,
        "--endpoint-selector": source.endpoint_selector,
        "--endpoints-file": source.endpoints_file,
        "--endpoint": source.endpoints,
        "--endpoints-dns": source.endpoints_dns,
    }
    found = [flag for flag, value in named.items() if value]
    if len(found) != 1:
        yield (
            "source of endpoints: expected exactly one of --pool-name, --endpoint-selector, --endpoints-file, "
            f"--endpoint (repeatable) and --endpoints-dns, found {' and '.join(found) or 'none'}"
        )


def _without_effect(settings: Settings, origins: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """What was said about Kubernetes although the endpoints come from elsewhere."""
    if not settings.source.in_kubernetes:
        said = [origin for (group, _), origin in origins.items() if group == "kubernetes" and origin != "default"]
        if said:
            yield f"{', '.join(sorted(said))}: without effect, for neither --pool-name nor --endpoint-selector is given"


def effective(loaded: Loaded) -> Iterator[tuple[str, Any, str]]:
    """Every setting as (key in the file, or flag; value; origin)."""
    for group, attribute, setting, _ in declared():
        value = getattr(getattr(loaded.settings, group), attribute)
        yield setting.key or setting.flag or attribute, value, loaded.origins[group, attribute]
