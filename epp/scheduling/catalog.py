"""The plugin types that a configuration may name, and building a profile from it."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epp.config import kinds
from epp.config.document import Document, PluginConfig, PluginRef, ProfileConfig
from epp.config.kinds import Kind
from epp.config.wording import show, step
from epp.errors import ConfigError
from epp.scheduling.filters.endpoint_health import EndpointHealthFilter
from epp.scheduling.pickers.max_score import MaxScorePicker
from epp.scheduling.pickers.random import RandomPicker
from epp.scheduling.plugin import Filter, Picker, Scorer
from epp.scheduling.profile import SchedulingProfile, WeightedScorer
from epp.scheduling.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp.scheduling.scorers.least_load import LeastLoadScorer
from epp.scheduling.scorers.queue import QueueScorer
from epp.scheduling.scorers.running_requests import RunningRequestsScorer

PROFILE_HANDLER = "single-profile-handler"
NOT_HERE_YET = frozenset(
    {
        "active-request-scorer",
        "approx-prefix-cache-producer",
        "by-label",
        "by-label-selector",
        "concurrency-detector",
        "context-length-aware",
        "data-parallel-profile-handler",
        "decode-filter",
        "disagg-profile-handler",
        "encode-filter",
        "header-based-testing-filter",
        "inflight-load-producer",
        "label-selector-filter",
        "latency-scorer",
        "load-aware-scorer",
        "lora-affinity-scorer",
        "no-hit-lru-scorer",
        "pd-profile-handler",
        "precise-prefix-cache-producer",
        "precise-prefix-cache-scorer",
        "predicted-latency-producer",
        "prefill-filter",
        "prefix-cache-affinity-filter",
        "prefix-cache-scorer",
        "session-affinity-filter",
        "session-affinity-scorer",
        "slo-headroom-tier-filter",
        "token-load-scorer",
        "token-producer",
        "utilization-detector",
        "weighted-random-picker",
    }
)
"""Types of the reference pickers that this one does not have (llm-d router and Gateway API Inference Extension, 2026)."""
_UNKNOWN = "unknown"
"""Role of a plugin whose type is none: that is told where it is declared, and not again where something refers to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What plugins are built with."""

    rng: random.Random
    staleness_s: float


@dataclass(frozen=True, slots=True)
class PluginType:
    """One type of plugin.

    Attributes:
        role: `scorer`, `picker` or `handler`.
        build: Makes one from its name, its parameters (by their names here) and the workshop.
        parameters: Allowed parameters, as name in the file → (name for `build`, kind).
    """

    role: str
    build: Callable[..., Any]
    parameters: Mapping[str, tuple[str, Kind[Any]]] = field(default_factory=dict)


def _scorer(make: Callable[..., Scorer]) -> PluginType:
    return PluginType("scorer", lambda name, workshop: make(name, staleness_s=workshop.staleness_s))


_MAX_ENDPOINTS = {"maxNumOfEndpoints": ("max_endpoints", kinds.COUNT)}

PLUGIN_TYPES: Mapping[str, PluginType] = {
    "kv-cache-utilization-scorer": PluginType(
        "scorer", lambda name, workshop: KvCacheUtilizationScorer(name, staleness_s=workshop.staleness_s)
    ),
    "least-load-scorer": _scorer(LeastLoadScorer),
    "queue-scorer": _scorer(QueueScorer),
    "running-requests-size-scorer": PluginType(
        "scorer", lambda name, workshop: RunningRequestsScorer(name, staleness_s=workshop.staleness_s)
    ),
    "max-score-picker": PluginType(
        "picker", lambda name, workshop, **p: MaxScorePicker(name, rng=workshop.rng, **p), _MAX_ENDPOINTS
    ),
    "random-picker": PluginType(
        "picker", lambda name, workshop, **p: RandomPicker(name, rng=workshop.rng, **p), _MAX_ENDPOINTS
    ),
    PROFILE_HANDLER: PluginType("handler", lambda name, workshop: None),
}


def default_profile(workshop: Workshop) -> SchedulingProfile:
    """What decides without a configuration: the least load, random among equals, around what is broken."""
    scorer = LeastLoadScorer(staleness_s=workshop.staleness_s)
    return SchedulingProfile("default", _filters(), [WeightedScorer(scorer)], MaxScorePicker(rng=workshop.rng))


def build_profile(document: Document | None, workshop: Workshop, other_types: Sequence[str] = ()) -> SchedulingProfile:
    """The profile that a configuration asks for.

    Args:
        document: The configuration file; without one, or without plugins in it, the default profile.
        other_types: Plugin types that other parts of the program take from the same list.

    Raises:
        ConfigError: All faults, each with its path and what is allowed.
    """
    if document is None or not (document.plugins or document.profiles):
        return default_profile(workshop)
    return _Builder(workshop, other_types).profile(document)


def _filters() -> list[Filter]:
    return [EndpointHealthFilter()]


class _Builder:
    """Builds plugins and collects every fault on the way."""

    def __init__(self, workshop: Workshop, other_types: Sequence[str]) -> None:
        self._workshop = workshop
        self._other_types = tuple(other_types)
        self._problems: list[str] = []

    def profile(self, document: Document) -> SchedulingProfile:
        plugins: dict[str, tuple[str, Any]] = {}
        for config in document.plugins:
            if config.name in plugins:
                self._problems.append(f"{config.where}.name: expected each name once, found {show(config.name)} again")
            plugins[config.name] = self._plugin(config)
        if len(document.profiles) > 1:
            second = document.profiles[1]
            self._problems.append(f"{second.where}: expected one profile, found {len(document.profiles)}")
        profile = self._assemble(document.profiles[0], plugins) if document.profiles else self._from_all(document, plugins)
        if self._problems:
            raise ConfigError(*self._problems)
        return profile

    def _plugin(self, config: PluginConfig) -> tuple[str, Any]:
        kind = PLUGIN_TYPES.get(config.type)
        if kind is None:
            if config.type in self._other_types:
                return "other", None
            known = ", ".join(sorted((*PLUGIN_TYPES, *self._other_types)))
            why = ", which other endpoint pickers have and this one does not yet" if config.type in NOT_HERE_YET else ""
            self._problems.append(f"{config.where}.type: expected one of {known}, found {show(config.type)}{why}")
            return _UNKNOWN, None
        values: dict[str, Any] = {}
        for key, value in config.parameters.items():
            if key not in kind.parameters:
                allowed = ", ".join(kind.parameters) or "no parameters"
                self._problems.append(f"{config.where}.parameters{step(key)}: expected {allowed}, found {show(key)}")
                continue
            name, value_kind = kind.parameters[key]
            try:
                values[name] = value_kind.read(value)
            except ValueError as error:
                self._problems.append(f"{config.where}.parameters.{key}: {error}")
        return kind.role, kind.build(config.name, self._workshop, **values)

    def _from_all(self, document: Document, plugins: Mapping[str, tuple[str, Any]]) -> SchedulingProfile:
        """Without profiles, all plugins make one, each scorer with weight 1 (as the reference pickers do it)."""
        refs = [
            PluginRef(where=config.where, name=config.name) for config in document.plugins if plugins[config.name][0] != "other"
        ]
        if not any(plugins[ref.name][0] == "scorer" for ref in refs):
            return default_profile(self._workshop)
        return self._assemble(ProfileConfig(where=document.where, name="default", plugins=refs), plugins)

    def _assemble(self, config: ProfileConfig, plugins: Mapping[str, tuple[str, Any]]) -> SchedulingProfile:
        scorers: list[WeightedScorer] = []
        is_whole = True
        pickers: list[Picker] = []
        for ref in config.plugins:
            role, plugin = plugins.get(ref.name, ("", None))
            if role == "scorer":
                scorer: Scorer = plugin
                scorers.append(WeightedScorer(scorer, 1.0 if ref.weight is None else ref.weight))
            elif role == "picker":
                pickers.append(plugin)
            elif role == _UNKNOWN:
                is_whole = False
            elif not role or role == "other":
                is_whole = False
                usable = ", ".join(name for name, (kind, _) in plugins.items() if kind not in ("other", _UNKNOWN))
                self._problems.append(
                    f"{ref.where}.pluginRef: expected one of {usable or 'none declared'}, found {show(ref.name)}"
                )
            if ref.weight is not None and role in ("picker", "handler"):
                self._problems.append(f"{ref.where}.weight: expected a weight on scorers only, found one on {show(ref.name)}")
        if len(pickers) > 1:
            self._problems.append(f"{config.where}: expected at most one picker, found {len(pickers)}")
        if is_whole and not scorers:
            self._problems.append(f"{config.where}: expected at least one scorer, found none")
        picker = pickers[0] if pickers else MaxScorePicker(rng=self._workshop.rng)
        return SchedulingProfile(config.name, _filters(), scorers, picker)
