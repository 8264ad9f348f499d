"""How soon a change in a real Kubernetes API server shows in picks, and whether a new list of many pods disturbs them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tests.bench.cutting_proxy import CuttingProxy
from tests.bench.epp_process import RunningEpp, start_serve
from tests.bench.machine import BenchError
from tests.bench.pick_stream import PickStream, start_picks
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import LABELS, POOL

PORT = 8000
_NO_SCRAPING = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, scrape: {enabled: false}}"
"""Nothing listens behind the pods: the client only asks where to go."""
_AT_ONCE = 16
_PLAIN_PER_S, _HINTED_PER_S = 100.0, 300.0
_QUIET_S = 0.2
"""So long without a pick there means that none comes any more."""
_STUCK_S = 30.0
_LIST_PICKS_PER_S = 200.0
_BETWEEN_LISTS_S = 1.5
_LIST_QUIET_S = 0.3
_TAKEN_S = 0.1
"""So long after its last byte a list may still be at work in the picker."""
_PADDING = "x" * 5_000
"""Pods in production are of 8 KB or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRun:
    """Deletions one after another, each seen by two kinds of picks. All times in ms, 0.0 when no pick came after.

    Attributes:
        from_request_ms: From just before the DELETE request to the last answer that named the pod, of picks that may go to
            that pod and one other only: how soon the picker's state knows.
        from_answer_ms: The same from the moment when the API server's answer came.
        plain_ms: As `from_request_ms`, of picks that may go anywhere.
        picks_per_s: Of both kinds together.
    """

    pods: int
    from_request_ms: list[float]
    from_answer_ms: list[float]
    plain_ms: list[float]
    picks_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRun:
    """Lists of many pods while picks go on.

    Attributes:
        lists: How many.
        list_ms: How long each took, from the cut of the watches until a while (`_TAKEN_S`) after the last byte.
        during_ms: How long picks took that were asked for while a list was read.
        outside_ms: How long all other picks took.
    """

    pods: int
    lists: int
    list_ms: list[float]
    during_ms: list[float]
    outside_ms: list[float]


# ── deletions ──


async def measure_deletions(cluster: RealCluster, core: int, pods: int, deletions: int) -> DeletionRun:
    """Delete pods, one after another; with few of them each is created anew.

    Raises:
        BenchError: A deletion is never seen.
    """
    addresses = await _create(cluster, pods)
    names = list(addresses)
    again = deletions > pods // 4
    spans: list[tuple[float, float, float]] = []
    async with (
        _start(cluster, core) as epp,
        start_picks(epp.grpc_port, _PLAIN_PER_S) as plain,
        start_picks(epp.grpc_port, _HINTED_PER_S) as hinted,
    ):
        began_s = time.perf_counter()
        for number in range(deletions):
            victim, other = names[number % pods], names[(number + pods // 2) % pods]
            both = [f"{addresses[name]}:{PORT}" for name in (victim, other)]
            asked_s, answered_s = await _delete(cluster, victim, both, hinted)
            last_s, plain_s = (picks.last_s.get(both[0], 0.0) for picks in (hinted, plain))
            spans.append((max(0.0, last_s - asked_s), max(0.0, last_s - answered_s), max(0.0, plain_s - asked_s)))
            if again:
                await _create_one(cluster, victim, addresses[victim])
        rate = (plain.count + hinted.count) / (time.perf_counter() - began_s)
    from_request, from_answer, plain_ms = (sorted(each * 1000 for each in column) for column in zip(*spans, strict=True))
    return DeletionRun(pods=pods, from_request_ms=from_request, from_answer_ms=from_answer, plain_ms=plain_ms, picks_per_s=rate)


async def _delete(cluster: RealCluster, victim: str, allowed: Sequence[str], picks: PickStream) -> tuple[float, float]:
    """When its deletion was asked for, and when that was answered; ends when it is gone."""
    address = allowed[0]
    picks.allow(allowed)
    began_s = time.perf_counter()
    await _until(lambda: picks.last_s.get(address, 0.0) > began_s, f"picks of {victim}")
    asked_s = time.perf_counter()
    await cluster.pods.mark_for_deletion(victim)
    answered_s = time.perf_counter()
    await _until(
        lambda: time.perf_counter() - max(picks.last_s[address], answered_s) > _QUIET_S, f"an end of the picks of {victim}"
    )
    picks.allow(allowed[1:])
    await cluster.pods.remove(victim)
    return asked_s, answered_s


# ── lists ──


async def measure_lists(cluster: RealCluster, core: int, pods: int, lists: int) -> ListRun:
    """Cut the watches again and again, so that all pods are listed anew, while picks go on (field report 84)."""
    await _create(cluster, pods, annotations={"padding": _PADDING})
    async with CuttingProxy(int(cluster.base_url.rpartition(":")[2])) as proxy:
        server = f"https://127.0.0.1:{proxy.port}"
        async with _start(cluster, core, server) as epp, start_picks(epp.grpc_port, _LIST_PICKS_PER_S) as picks:
            spans = []
            await asyncio.sleep(_BETWEEN_LISTS_S)
            for number in range(lists):
                cut_s = proxy.cut()
                await _until(partial(proxy.is_quiet, pods * len(_PADDING), _LIST_QUIET_S), "an end of the list")
                spans.append((cut_s, proxy.last_byte_s + _TAKEN_S))
                await asyncio.sleep(_BETWEEN_LISTS_S)
                await cluster.pods.set_labels("pod-0", spin=str(number))  # a watch that brought an event: no long pauses
                await asyncio.sleep(_LIST_QUIET_S)
    during = [each for each in picks.told if any(cut_s <= each.answered_s and each.sent_s <= end_s for cut_s, end_s in spans)]
    known = set(during)
    return ListRun(
        pods=pods,
        lists=lists,
        list_ms=sorted((last_s - first_s) * 1000 for first_s, last_s in spans),
        during_ms=sorted(told.took_ms for told in during),
        outside_ms=sorted(told.took_ms for told in picks.told if told not in known),
    )


# ── both ──


@asynccontextmanager
async def _start(cluster: RealCluster, core: int, server: str | None = None) -> AsyncIterator[RunningEpp]:
    await cluster.create_pool(POOL, LABELS, [PORT])
    kubeconfig = str(cluster.kubeconfig(server=server))
    source = ["--pool-name", POOL, "--kubeconfig", kubeconfig, "--config-text", _NO_SCRAPING]
    async with start_serve(source, core) as epp:
        yield epp


async def _create(cluster: RealCluster, pods: int, annotations: dict[str, str] | None = None) -> dict[str, str]:
    """So many ready pods; their addresses by name."""
    addresses = {f"pod-{n}": f"127.{20 + n // 62_500}.{n // 250 % 250}.{n % 250 + 1}" for n in range(pods)}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str, address: str) -> None:
        async with turns:
            await _create_one(cluster, name, address, annotations)

    async with asyncio.TaskGroup() as group:
        for name, address in addresses.items():
            group.create_task(create(name, address))
    return addresses


async def _create_one(cluster: RealCluster, name: str, address: str, annotations: dict[str, str] | None = None) -> None:
    await cluster.pods.create(name, address, labels=LABELS, ports=(PORT,), annotations=annotations)


async def _until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(_STUCK_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise BenchError(f"expected {what} within {_STUCK_S:g} s, found none") from None
