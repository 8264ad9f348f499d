"""Engines that users describe themselves, by the parameters of `core-metrics-extractor`.

```yaml
engineLabelKey: llm-d.ai/engine-type
defaultEngine: vllm
engineConfigs:
- name: my-engine
  queuedRequestsSpec: 'my_queue{state="waiting"}'
  runningRequestsSpec: 'my_queue{state="running"}'
  kvUsageSpec: my_kv_usage          # a ratio from 0 to 1
  loraSpec: ""                      # off
  cacheInfoSpec: my_cache_info
  cacheBlockSizeLabelName: page_size
  cacheNumBlocksLabelName: num_pages
```
Unlike in other pickers, all matchers of a selector are honoured, and all selected series are summed (usage: the highest).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from epp.errors import ConfigError
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import Alternatives, Term
from epp.scrape.selector import Selector, parse_selector

EXTRACTOR_KEYS = ("engineLabelKey", "defaultEngine", "engineConfigs")
_SELECTOR_KEYS = (
    "queuedRequestsSpec",
    "runningRequestsSpec",
    "kvUsageSpec",
    "loraSpec",
    "cacheInfoSpec",
    "cacheBlockSizeSpec",
    "cacheNumBlocksSpec",
)
_LABEL_KEYS = ("cacheBlockSizeLabelName", "cacheNumBlocksLabelName")
ENGINE_KEYS = ("name", *_SELECTOR_KEYS, *_LABEL_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorParameters:
    """What the parameters of one `core-metrics-extractor` say.

    Attributes:
        engine_label_key: Label of an endpoint that names its engine; None when not given.
        default_engine: Engine of endpoints without that label whose page is recognised as no other's; None when not given.
        engines: The user's own engines; one with the name of a built-in engine replaces it.
    """

    engine_label_key: str | None = None
    default_engine: str | None = None
    engines: tuple[Engine, ...] = ()


def extractor_parameters(parameters: Mapping[str, Any], where: str = "parameters") -> ExtractorParameters:
    """Read all parameters of a `core-metrics-extractor`.

    Args:
        where: Their key path, for errors.

    Raises:
        ConfigError: With every fault that was found.
    """
    problems = _unknown_keys(parameters, EXTRACTOR_KEYS, where)
    texts = {key: _text(parameters, key, where, problems) for key in EXTRACTOR_KEYS[:2]}
    configs = parameters.get("engineConfigs") or []
    if not isinstance(configs, list):
        problems.append(f"{where}.engineConfigs: expected a list of engines, found {configs!r}")
        configs = []
    engines: list[Engine] = []
    for index, config in enumerate(configs):
        at = f"{where}.engineConfigs[{index}]"
        if not isinstance(config, Mapping):
            problems.append(f"{at}: expected a map, found {config!r}")
            continue
        try:
            engine = custom_engine(config, at)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if any(engine.name == other.name for other in engines):
            problems.append(f"{at}.name: expected each name once, found {engine.name!r} again")
        engines.append(engine)
    if problems:
        raise ConfigError(*problems)
    return ExtractorParameters(
        engine_label_key=texts["engineLabelKey"] or None, default_engine=texts["defaultEngine"] or None, engines=tuple(engines)
    )


def custom_engine(parameters: Mapping[str, Any], where: str = "engineConfigs[0]") -> Engine:
    """Build the engine that one entry of `engineConfigs` describes.

    A spec that is missing or empty switches its quantity off; an engine with none is never read.

    Args:
        where: The key path of the entry, for errors.

    Raises:
        ConfigError: With every fault of the entry.
    """
    problems = _unknown_keys(parameters, ENGINE_KEYS, where)
    texts = {key: _text(parameters, key, where, problems) for key in ENGINE_KEYS}
    if not texts["name"] and isinstance(parameters.get("name", ""), str):
        problems.append(f"{where}.name: expected the name of the engine, found nothing")
    selectors = {key: _selector(texts[key], f"{where}.{key}", problems) for key in _SELECTOR_KEYS}
    if texts["cacheInfoSpec"] and not any(texts[key] for key in _LABEL_KEYS):
        problems.append(f"{where}.cacheInfoSpec: expected {' or '.join(_LABEL_KEYS)} beside it, found neither")
    if not texts["cacheInfoSpec"] and "cacheInfoSpec" not in parameters:
        problems.extend(f"{where}.{key}: expected cacheInfoSpec beside it, found none" for key in _LABEL_KEYS if texts[key])
    if problems:
        raise ConfigError(*problems)
    info = selectors["cacheInfoSpec"]
    page = ExpositionPage(
        waiting=_values(selectors["queuedRequestsSpec"]),
        running=_values(selectors["runningRequestsSpec"]),
        kv_usage=_values(selectors["kvUsageSpec"]),
        kv_blocks=_values(selectors["cacheNumBlocksSpec"]) + _labels(info, texts["cacheNumBlocksLabelName"]),
        kv_block_tokens=_values(selectors["cacheBlockSizeSpec"]) + _labels(info, texts["cacheBlockSizeLabelName"]),
        lora=selectors["loraSpec"],
    )
    return Engine(
        name=texts["name"],
        sources=(Source(path="/metrics"),) if page.names else (),
        recognise=tuple(sorted(name.encode() for name in page.names)),
        exposition=page,
    )


def _unknown_keys(parameters: Mapping[str, Any], allowed: Iterable[str], where: str) -> list[str]:
    known = ", ".join(allowed)
    return [f"{where}.{key}: expected one of {known}, found {key!r}" for key in parameters if key not in known.split(", ")]


def _text(parameters: Mapping[str, Any], key: str, where: str, problems: list[str]) -> str:
    value = parameters.get(key, "")
    if value is None or isinstance(value, str):
        return (value or "").strip()
    problems.append(f"{where}.{key}: expected a text, found {value!r}")
    return ""


def _selector(text: str, where: str, problems: list[str]) -> Selector | None:
    try:
        return parse_selector(text, where) if text else None
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _values(selector: Selector | None) -> Alternatives:
    """The selected values; a counter may stand with or without `_total` (OpenMetrics names its family without)."""
    if selector is None:
        return ()
    other = selector.name.removesuffix("_total") if selector.name.endswith("_total") else f"{selector.name}_total"
    names = (selector.name, other)
    return tuple((Term(selector=Selector(name=name, matchers=selector.matchers)),) for name in names)


def _labels(selector: Selector | None, label: str) -> Alternatives:
    return ((Term(selector=selector, label=label),),) if selector is not None and label else ()
