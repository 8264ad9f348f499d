"""All engines that are known: found by name, or recognised from a page without being told."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from epp.config.wording import show
from epp.errors import ConfigError
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.json_page import decode
from epp.scrape.engines.llamacpp import LLAMACPP
from epp.scrape.engines.lmdeploy import LMDEPLOY
from epp.scrape.engines.nim import NIM
from epp.scrape.engines.ollama import OLLAMA
from epp.scrape.engines.page import PageError, PageFormat, Source
from epp.scrape.engines.sglang import SGLANG
from epp.scrape.engines.tgi import TGI
from epp.scrape.engines.triton import TRITON
from epp.scrape.engines.trtllm_serve import TRTLLM_SERVE
from epp.scrape.engines.vllm import VLLM
from epp.scrape.exposition import beginning, looks_like_exposition

BUILT_IN: tuple[Engine, ...] = (VLLM, SGLANG, TRTLLM_SERVE, TRITON, LLAMACPP, TGI, LMDEPLOY, NIM, OLLAMA)
"""In the order in which a page is recognised: names without a prefix (NIM) come after all that have one."""

ENGINE_LABEL_KEYS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Labels by which pods name their engine to other endpoint pickers, too."""

_PROBES = (
    Source(path="/metrics"),
    Source(path="/prometheus/metrics"),
    Source(path="/v1/metrics"),
    Source(path="/v1/loads?include=core&format=json", format=PageFormat.JSON),
    Source(path="/slots", format=PageFormat.JSON),
    Source(path="/api/ps", format=PageFormat.JSON),
    Source(path="/metrics", port=8002),  # last: a port that nobody opened may swallow packets until the timeout
)
_NOT_IN_A_NAME = rb"(?![a-zA-Z0-9_:])"


class EngineCatalog:
    """The engines that one process knows."""

    def __init__(
        self,
        engines: Iterable[Engine] = BUILT_IN,
        *,
        custom: Iterable[Engine] = (),
        label_key: str | None = None,
        default_engine: str | None = None,
    ) -> None:
        """Args:
            engines: In the order in which pages are recognised.
            custom: The user's own. One with the name of another engine replaces it, is recognised as that one was and
                read where that one was; pages are recognised as theirs only when they are no other engine's.
            label_key: Label of endpoints that names their engine; by default the `ENGINE_LABEL_KEYS`.
            default_engine: The engine of metrics pages that are recognised as no other's.

        Raises:
            ConfigError: There is no engine called `default_engine`.
        """
        own = {engine.name: engine for engine in custom}
        known = [_replaced(engine, own.pop(engine.name)) if engine.name in own else engine for engine in engines]
        self._engines = (*known, *own.values())
        aliases = {alias.lower(): engine for engine in reversed(self._engines) for alias in engine.aliases}
        self._by_name = aliases | {engine.name.lower(): engine for engine in reversed(self._engines)}
        self._signed = tuple(engine for engine in self._engines if engine.recognise)
        self._signs = _signs(engine.recognise for engine in self._signed)
        self._label_keys = ENGINE_LABEL_KEYS if label_key is None else (label_key,)
        self._default = None if default_engine is None else self.named(default_engine, "defaultEngine")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all engines, without aliases."""
        return tuple(engine.name for engine in self._engines)

    def named(self, name: str, where: str = "engine") -> Engine:
        """The engine of that name or alias, in any case.

        Args:
            where: The key path of the name, for the error.

        Raises:
            ConfigError: There is none; the text lists those there are.
        """
        engine = self._by_name.get(name.strip().lower())
        if engine is None:
            raise ConfigError(f"{where}: expected one of {', '.join(self.names)}, found {show(name)}")
        return engine

    def labelled(self, labels: Mapping[str, str]) -> Engine | None:
        """The engine that an endpoint's labels name; None when they name none that is known (its page tells then)."""
        names = [name for key in self._label_keys if (name := labels.get(key))]
        return self._by_name.get(names[0].strip().lower()) if names else None

    def recognise(self, page: bytes, content_type: str | None) -> Engine | None:
        """The engine whose page this is, or None when it tells nothing (an empty one, one with other metrics, HTML).

        Lines of HELP and TYPE count too, so a server that has not served anything yet is recognised by them. One pass over
        the `beginning` of the page, since any server may send a page that costs as much as it can.
        """
        kind = (content_type or "").lower()
        if "html" in kind:
            return None
        if "json" in kind or page.lstrip()[:1] in (b"{", b"["):
            return self._recognise_json(page)
        otherwise = self._default if self._default is not None and looks_like_exposition(page) else None
        first = len(self._signed)
        for sign in self._signs.finditer(beginning(page)):
            first = min(first, (sign.lastindex or 0) - 1)
            if not first:
                break
        return self._signed[first] if first < len(self._signed) else otherwise

    def probe_sources(self) -> tuple[Source, ...]:
        """Where to look, in this order, at an endpoint whose engine is not known."""
        return _PROBES

    def _recognise_json(self, page: bytes) -> Engine | None:
        try:
            value = decode(page)
        except PageError:
            return None
        return next((engine for engine in self._engines if engine.json is not None and engine.json.is_ours(value)), None)


def _signs(engines: Iterable[Iterable[bytes]]) -> re.Pattern[bytes]:
    """Finds lines, of a sample or of a comment on a family, whose name begins so; group 1 is that of the first engine, …

    It begins with a plain line feed, which is searched for many times faster than anything else; empty lines cost little.
    """
    groups = b"|".join(b"(" + b"|".join(_name(name) for name in names) + b")" for names in engines) or b"(?!)"
    return re.compile(rb"\n(?!\n)[ \t]*+(?:#[ \t]*+(?:HELP|TYPE|UNIT)[ \t]++)?+(?:" + groups + rb")")


def _name(beginning_of_it: bytes) -> bytes:
    return re.escape(beginning_of_it) + (b"" if beginning_of_it.endswith((b":", b"_")) else _NOT_IN_A_NAME)


def _replaced(engine: Engine, own: Engine) -> Engine:
    sources = tuple(source for source in engine.sources if source.format is PageFormat.EXPOSITION)
    return replace(
        own,
        aliases=engine.aliases,
        sources=sources or own.sources if own.sources else (),
        recognise=(*engine.recognise, *own.recognise),
    )
