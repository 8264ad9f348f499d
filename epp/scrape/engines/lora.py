"""Adapters, from vLLM's family that says everything in its labels."""

from math import isfinite

from epp.pool.metrics import LoraState
from epp.scrape.engines.quantity import Series
from epp.scrape.exposition import Labels
from epp.scrape.selector import Selector

LATEST_PLAUSIBLE_S = 3e9
"""Values are Unix times. One beyond this (the year 2065) is a sum of several, as `prometheus_client` makes of the gauges
of several API server processes, and then the highest value is not the newest one."""


def read_lora(selector: Selector, series: Series, *, several_processes: bool) -> LoraState | None:
    """The adapters of the newest series: the engine keeps one for every combination it ever had.

    Args:
        several_processes: Whether the page is put together from several processes, whose values then are sums.

    Returns:
        None when there is no series, or when which one is new cannot be told.
    """
    selected = [s for s in series.get(selector.name, ()) if isfinite(s.value) and selector.matches(s.labels)]
    if not selected or several_processes:
        return None
    newest = max(selected, key=lambda sample: sample.value)
    if newest.value > LATEST_PLAUSIBLE_S:
        return None
    return LoraState(
        active=_names(newest.labels, "running_lora_adapters"),
        waiting=_names(newest.labels, "waiting_lora_adapters"),
        max_adapters=_max_adapters(newest.labels.get("max_lora", "")),
    )


def _names(labels: Labels, label: str) -> frozenset[str]:
    return frozenset(name for part in labels.get(label, "").split(",") if (name := part.strip()))


def _max_adapters(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
