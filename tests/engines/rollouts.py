"""A rollout of a pool of real model servers, through real Envoy and `epp serve`, under steady load."""

from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from epp.envoy.typed import typed
from tests.engines.asks import plan_engine_asks
from tests.engines.engine_pod import EnginePod
from tests.engines.servers import RealServer
from tests.rollout.hooks import COMMAND
from tests.rollout.load import Load
from tests.rollout.practice import Practice
from tests.rollout.scene import Rollout, start_pool

SERVER_HEADER = "x-served-by"


def tell_servers(configuration: Bootstrap) -> None:
    """Let Envoy say in each answer which address gave it: real servers do not say who they are."""
    assert configuration.static_resources is not None
    (chain,) = configuration.static_resources.listeners[0].filter_chains
    (manager_filter,) = chain.filters
    assert manager_filter.typed_config is not None
    manager = manager_filter.typed_config.unpack()
    assert isinstance(manager, hcm.HttpConnectionManager)
    assert manager.route_config is not None
    told = core.HeaderValueOption(header=core.HeaderValue(key=SERVER_HEADER, value="%UPSTREAM_REMOTE_ADDRESS%"))
    manager.route_config.response_headers_to_add.append(told)
    manager_filter.typed_config = typed(manager)


async def roll_real(server: RealServer, practice: Practice, *, hook_kind: str = COMMAND) -> Rollout:
    """Roll a pool of this engine: each pod is told to end in the middle of an answer."""
    pace = server.pace
    async with (
        start_pool(
            server.engine,
            practice,
            pace,
            hook_kind=hook_kind,
            pod_maker=lambda number: EnginePod(f"{server.engine}-{number}", server),
            adapt=tell_servers,
        ) as (deployment, epp, url),
        Load(url, plan_engine_asks(0, pace), rate_per_s=pace.rate_per_s, server_header=SERVER_HEADER) as load,
    ):
        await load.more(3)
        await deployment.roll(lambda pod: load.until_streams(str(pod.address), left_s=pace.in_flight_s))
        await load.more(3)
    name = f"{server.version}, {hook_kind}" if practice.hook else server.version
    return Rollout(name, practice, load.tally, deployment.ends, epp.log_records("error"))
