"""Composition root: builds every object of `epp serve`, runs the tasks, shuts down in order."""

import asyncio
import contextlib
import datetime
import gc
import itertools
import os
import platform
import random
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from epp.admin.peers import Peers
from epp.admin.pool_collector import PoolCollector
from epp.admin.server import AdminServer
from epp.admin.settings_view import EffectiveSetting
from epp.admin.token_file import TokenFile
from epp.clock import Clock, SystemClock
from epp.config.document import Document
from epp.config.loader import Loaded, effective
from epp.config.settings import Settings
from epp.discovery.discovery import Discovery
from epp.discovery.dns import DnsDiscovery
from epp.discovery.file import FileDiscovery
from epp.discovery.replicas import Replicas
from epp.discovery.static import StaticDiscovery
from epp.eds.endpoint_lists import EndpointLists
from epp.endpoint_picker import EndpointPicker
from epp.extproc.budget import BufferBudget
from epp.extproc.exchange import Exchange, WarnOnce
from epp.extproc.grpcio_transport import GrpcioTransport
from epp.extproc.health import Health
from epp.extproc.socket_transport import SocketTransport
from epp.extproc.tls import CertificateReloader, KeyPair, read_client_ca, read_key_pair, self_signed
from epp.lifecycle import DrainWait, Lifecycle, Phase
from epp.pool.journal import PoolJournal
from epp.pool.model_rewrites import ModelRewrites
from epp.pool.objectives import Objectives
from epp.pool.stall import StallWatch
from epp.pool.state import PoolState
from epp.scheduling.catalog import Workshop, build_profile
from epp.scrape.beat import Beat
from epp.scrape.catalog import EngineCatalog
from epp.scrape.configured import SCRAPE_PLUGIN_TYPES, configured_catalog
from epp.scrape.fleet import Fleet
from epp.telemetry.kubernetes_metrics import KubernetesMetrics
from epp.telemetry.logging import LoggerFactory, configure_logging
from epp.telemetry.metrics import Metrics
from epp.telemetry.picker_metrics import Build

NESTING_MAX = 20_000
LOOK_EVERY_S = 1.0
PEERS_NAMED_WITHIN_S = 2.0
"""A name server that is slower than this does not keep a replica from its start; marks are asked for again later."""
LOOKS_BETWEEN_SENDING_ELSEWHERE = 20
"""While it drains: about a second. A peer may come back here, as long as its list of replicas still has this one."""


def run(loaded: Loaded, document: Document | None, ignored_flags: Sequence[str] = ()) -> None:
    """Run the endpoint picker until SIGTERM, SIGINT or SIGHUP.

    Raises:
        ConfigError: Something the user wrote is wrong.
        BindError: A port cannot be opened.
    """
    log_settings = loaded.settings.log
    loggers = configure_logging(log_settings.level, log_settings.format)
    app = App(loaded, document, loggers)
    for note in loaded.notes:
        loggers("serve").warning("a note on the settings", note=note)
    if ignored_flags:
        loggers("serve").warning("flags without a meaning here were ignored", flags=list(ignored_flags))
    # Objects in Kubernetes may be nested this deep (JSON readers written in Go stop at 10,000), and one that cannot be read
    # must not hide the others.
    sys.setrecursionlimit(NESTING_MAX)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(app.serve())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one; it costs about a third less than asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class App:
    """Everything of one `epp serve`, built and not yet running."""

    def __init__(self, loaded: Loaded, document: Document | None, loggers: LoggerFactory) -> None:
        settings = loaded.settings
        self._settings = settings
        self._loggers = loggers
        self._log = loggers("serve")
        self._clock: Clock = SystemClock()
        self._lifecycle = Lifecycle()
        registry = CollectorRegistry()
        self._metrics = Metrics(registry, model_names=settings.requests.models)
        self._pool = PoolState(self._clock, name=_pool_name(settings), source=_source_name(settings))
        self._pool.on_gone(self._metrics.endpoint_gone)
        drains = self._pool.drains
        drains.on_end(lambda record: self._metrics.endpoint_drain_ended(record.latest_pick_s, record.latest_stream_s))
        drains.on_cut(self._metrics.endpoint_drain_cut)
        self._metrics.read_recommended_min_wait_from(lambda: drains.recommended_min_wait_s)
        registry.register(PoolCollector(self._pool, self._lifecycle, self._clock))
        catalog = configured_catalog(document)
        rng = random.Random()  # noqa: S311 — spreads load, guards nothing
        self._objectives = Objectives()
        self._rewrites = ModelRewrites(rng)
        self._discovery = self._build_discovery(catalog, registry, rng)
        self._fleet = Fleet(
            self._pool,
            catalog,
            settings.scrape,
            clock=self._clock,
            random=rng,
            observer=self._metrics,
            log=loggers("scrape"),
            sleep=Beat().sleep,
        )
        profile = build_profile(document, Workshop(rng=rng, staleness_s=settings.scrape.staleness_s), SCRAPE_PLUGIN_TYPES)
        picker = EndpointPicker(
            self._pool,
            profile,
            clock=self._clock,
            observer=self._metrics,
            log=loggers("picks"),
            last_resort=settings.drain.last_resort,
        )
        self._stalls = StallWatch(
            self._pool,
            self._clock,
            stall_after_s=settings.health.stall_after_s,
            stalled_requests=settings.health.stalled_requests,
        )
        self._journal = PoolJournal(self._pool, loggers("pool"))
        self._lists = EndpointLists(self._pool, log=loggers("eds"))
        self._transport = self._build_transport(picker)
        self._tls = self._build_tls()
        self._client_ca = None if settings.server.client_ca is None else read_client_ca(Path(settings.server.client_ca))
        token_file = settings.admin.token_file
        token = None if token_file is None else TokenFile(token_file, loggers("admin"))
        self._replicas = Replicas(settings.admin.peers, settings.admin.peers_dns, log=loggers("peers"))
        self._peers = Peers(
            self._replicas, token=token, timeout_s=settings.admin.peer_timeout_s, clock=self._clock, log=loggers("peers")
        )
        self._metrics.read_peer_failures_from(lambda: self._peers.failed_calls)
        self._admin = AdminServer(
            host=settings.server.host,
            port=settings.server.metrics_port,
            pool=self._pool,
            lifecycle=self._lifecycle,
            clock=self._clock,
            registry=registry,
            recent_picks=picker.recent,
            settings=[EffectiveSetting(key=key, value=value, source=origin) for key, value, origin in effective(loaded)],
            token=token,
            peers=self._peers,
            log=loggers("admin"),
        )
        self._metrics.config_is_valid(True)
        self._metrics.describe_build(
            Build(version=_version(), python=platform.python_version(), transport=self._transport.name)
        )

    async def serve(self) -> None:
        """Open the ports, become ready, serve until a signal, drain, close."""
        server = self._settings.server
        stop = _stop_signals()
        async with self._peers, self._admin:
            address, health = await self._listen()
            self._tell_ports(address, health)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_for_ever(self._discovery.run(), "discovery")),
                    group.create_task(_for_ever(self._fleet.run(), "scraping")),
                    group.create_task(_for_ever(self._transport.run(), "transport")),
                    group.create_task(_for_ever(self._watch_endpoints(), "watch of endpoints")),
                    group.create_task(_for_ever(self._replicas.run(), "watch of replicas")),
                    group.create_task(_for_ever(self._peers.run(self._pool), "talk with replicas")),
                    group.create_task(_for_ever(self._lists.run(), "lists of endpoints")),
                ]
                ready = group.create_task(self._become_ready())
                signal_name = await stop.get()
                self._log.info("drain begins", signal=signal_name, timeout_s=server.drain_timeout_s)
                ready.cancel()
                self._lifecycle.enter(Phase.DRAINING)
                self._lists.end_all()
                await self._drain(stop)
                for task in tasks:
                    task.cancel()
        self._lifecycle.enter(Phase.STOPPED)
        self._log.info("stopped")

    async def _listen(self) -> tuple[tuple[str, int], tuple[str, int]]:
        server, limits, transport = self._settings.server, self._settings.limits, self._transport
        if isinstance(transport, GrpcioTransport):
            address = await transport.listen(server.host, server.grpc_port, limits=limits, tls=self._tls)
        else:
            address = await transport.listen(
                server.host, server.grpc_port, limits=limits, tls=self._tls, client_ca=self._client_ca
            )
            if server.grpc_socket is not None:
                await transport.listen_on_unix_socket(server.grpc_socket, limits=limits)
        return address, await transport.listen_for_health(server.host, server.grpc_health_port)

    async def _become_ready(self) -> None:
        listed = asyncio.Event()
        self._pool.on_listed(listed.set)
        await listed.wait()
        await asyncio.gather(self._fleet.first_round_done.wait(), self._learn_drains())
        # What is there now stays: the garbage collector need not look at it again and again, which takes 60 ms at a time in a
        # pool of 3,000 pods.
        gc.collect()
        gc.freeze()
        self._lifecycle.enter(Phase.SERVING)
        self._log.info("serving", endpoints=len(self._pool.endpoints), ready=len(self._pool.ready))

    async def _learn_drains(self) -> None:
        """What other replicas were told to drain must not get the first requests of this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PEERS_NAMED_WITHIN_S):
                await self._peers.asked()
        await self._peers.learn(self._pool)

    async def _watch_endpoints(self) -> NoReturn:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._stalls.look()
            for endpoint in self._pool.end_marks():
                self._log.info("drain mark ended", endpoint=endpoint.address, name=endpoint.spec.name)
            self._journal.look()

    async def _drain(self, stop: "asyncio.Queue[str]") -> None:
        """Serve on until nothing is open for a while, the time is over, or a second signal comes."""
        began_s = self._clock.monotonic_s()
        wait = DrainWait(began_s, timeout_s=self._settings.server.drain_timeout_s)
        looks = 0
        while not wait.is_over(self._clock.monotonic_s(), self._transport.open_streams) and stop.empty():
            if looks % LOOKS_BETWEEN_SENDING_ELSEWHERE == 0:
                self._transport.send_elsewhere()
            looks += 1
            await asyncio.sleep(0.05)
        cut = self._transport.open_streams
        await self._transport.stop(0.2)
        duration_s = self._clock.monotonic_s() - began_s
        self._metrics.drain_ended(duration_s, cut)
        self._log.info("drain ended", duration_s=round(duration_s, 2), cut_requests=cut)

    def _tell_ports(self, grpc: tuple[str, int], health: tuple[str, int]) -> None:
        tls = "TLS" if self._tls is not None else "plaintext"
        admin_host = self._settings.server.host or "[::]"
        self._log.info(
            "listening",
            grpc=f"{grpc[0]}:{grpc[1]}",
            grpc_security=tls,
            grpc_socket=self._settings.server.grpc_socket,
            health=f"{health[0]}:{health[1]}",
            metrics=f"{admin_host}:{self._admin.port}",
            transport=self._transport.name,
        )
        # For people and programs that let the system choose ports; everything else goes to the log.
        sys.stdout.write(
            f"listening grpc={grpc[0]}:{grpc[1]} health={health[0]}:{health[1]} metrics={admin_host}:{self._admin.port}\n"
        )
        sys.stdout.flush()

    def _build_discovery(self, catalog: EngineCatalog, registry: CollectorRegistry, rng: random.Random) -> Discovery:
        source = self._settings.source
        log = self._loggers("discovery")
        if source.in_kubernetes:
            return self._build_kubernetes(catalog, registry, rng, log)
        if source.endpoints_file is not None:
            discovery = FileDiscovery(
                self._pool,
                source.endpoints_file,
                known_engine=lambda name: catalog.named(name).name,
                on_valid=self._metrics.config_is_valid,
                clock=self._clock,
                log=log,
            )
            discovery.load()
            return discovery
        if source.endpoints_dns is not None:
            return DnsDiscovery(self._pool, source.endpoints_dns, log=log)
        return StaticDiscovery(self._pool, source.endpoints)

    def _build_kubernetes(
        self, catalog: EngineCatalog, registry: CollectorRegistry, rng: random.Random, log: FilteringBoundLogger
    ) -> Discovery:
        # Imported here: the client for the API server is nothing that other sources should wait for at the start.
        from epp.discovery.kubernetes.access import find_access
        from epp.discovery.kubernetes.api_server import ApiServer
        from epp.discovery.kubernetes.discovery import KubernetesDiscovery, pod_source

        settings = self._settings.kubernetes
        access = find_access(settings.kubeconfig, os.environ)
        metrics = KubernetesMetrics()
        registry.register(metrics)
        return KubernetesDiscovery(
            self._pool,
            ApiServer(access),
            pod_source(self._settings.source, settings, access.namespace),
            known_engine=lambda name: catalog.named(name).name,
            objectives=self._objectives,
            rewrites=self._rewrites,
            metrics=metrics,
            lifecycle=self._lifecycle,
            identity=f"{platform.node()}_{uuid.uuid4().hex[:8]}",
            elect_leader=settings.leader_election,
            clock=self._clock,
            random=rng,
            log=log,
        )

    def _build_exchange(self, picker: EndpointPicker) -> Exchange:
        budget = BufferBudget(self._settings.limits.max_buffered_bytes)
        self._metrics.read_buffered_bytes_from(lambda: budget.held_bytes)
        numbers = itertools.count(1)
        return Exchange(
            pick=picker.pick,
            clock=self._clock,
            observer=self._metrics,
            bugs=self._loggers("ext_proc"),
            limits=self._settings.limits,
            requests=self._settings.requests,
            budget=budget,
            next_request_id=lambda: f"epp-{next(numbers)}",
            rewrites=self._rewrites,
            objectives=self._objectives if self._settings.source.in_kubernetes else None,
            warn_once=WarnOnce(self._loggers("ext_proc")),
        )

    def _build_transport(self, picker: EndpointPicker) -> GrpcioTransport | SocketTransport:
        exchange = self._build_exchange(picker)
        health = Health(self._lifecycle, self._settings.server.health_aliases)
        if self._settings.server.transport == "grpcio":
            return GrpcioTransport(exchange, health, lists=self._lists)
        self._metrics.expect_tls_handshakes()
        observer = ConnectionObserver(self._metrics, self._loggers("connections"), self._clock)
        transport = SocketTransport(exchange, health, observer=observer, lists=self._lists)
        self._metrics.read_wire_limits_from(lambda: transport.tally.hits)
        return transport

    def _build_tls(self) -> KeyPair | CertificateReloader | None:
        server = self._settings.server
        if not server.secure_serving:
            return None
        if server.cert_path is None:
            return self_signed(datetime.datetime.now(datetime.UTC))
        folder = Path(server.cert_path)
        if server.enable_cert_reload:
            return CertificateReloader(folder, clock=self._clock, log=self._loggers("tls"))
        return read_key_pair(folder)


class ConnectionObserver:
    """Counts connections that came to nothing, and says so once a minute at most."""

    def __init__(self, metrics: Metrics, log: FilteringBoundLogger, clock: Clock) -> None:
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._told_at_s: dict[str, float] = {}

    def handshake_failed(self, why: str) -> None:
        self._metrics.tls_handshake_failed()
        self._tell("TLS handshakes fail", why)

    def limit_hit(self, limit: str) -> None:
        self._tell("a limit of the wire was hit", limit)

    def _tell(self, event: str, detail: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._told_at_s.get(event, -60.0) >= 60.0:
            self._told_at_s[event] = now_s
            self._log.warning(event, detail=detail)


async def _for_ever(running: Awaitable[Any], what: str) -> NoReturn:
    """A service never returns: a quiet return is an error."""
    await running
    raise RuntimeError(f"{what} ended without being asked to")


def _stop_signals() -> "asyncio.Queue[str]":
    """Names of SIGTERM, SIGINT and SIGHUP (a terminal that closes) as they come."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[str] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, came.put_nowait, number.name)
    return came


def _source_name(settings: Settings) -> str:
    if settings.source.in_kubernetes:
        return "kubernetes"
    if settings.source.endpoints_file is not None:
        return "file"
    return "dns" if settings.source.endpoints_dns is not None else "static"


def _pool_name(settings: Settings) -> str:
    source = settings.source
    if source.endpoints_file is not None:
        return Path(source.endpoints_file).stem
    return source.pool_name or source.endpoint_selector or source.endpoints_dns or "static"


def _version() -> str:
    try:
        return version("inference-epp")
    except PackageNotFoundError:
        return "0+unknown"
