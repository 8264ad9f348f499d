"""Variables of the environment that are not listened to."""

from typing import Any

import pytest

from epp.config import kinds
from epp.config.environment import remarks
from epp.config.kinds import Kind

KNOWN: dict[str, Kind[Any]] = {"EPP_GRPC_PORT": kinds.PORT, "EPP_METRICS_PORT": kinds.PORT, "EPP_HOST": kinds.TEXT}


def said(**environment: str) -> list[str]:
    return list(remarks(environment, KNOWN))


@pytest.mark.parametrize("scheme", ["tcp", "udp", "sctp"])
def test_a_port_that_kubernetes_set_for_a_service_is_told(scheme: str) -> None:
    (remark,) = said(EPP_GRPC_PORT=f"{scheme}://10.0.0.1:9002")
    assert remark.startswith(f"EPP_GRPC_PORT: ignored, '{scheme}://10.0.0.1:9002' is what Kubernetes sets for a Service")


def test_the_other_variables_of_a_service_are_no_misspellings() -> None:
    assert not said(
        EPP_GRPC_SERVICE_HOST="10.0.0.1",
        EPP_GRPC_SERVICE_PORT="9002",
        EPP_GRPC_SERVICE_PORT_HTTP="9002",
        EPP_GRPC_PORT_9002_TCP="tcp://10.0.0.1:9002",
        EPP_GRPC_PORT_9002_TCP_PORT="9002",
        EPP_GRP_PORT="tcp://10.0.0.1:9002",
    )


def test_a_misspelt_variable_is_told_with_the_one_that_was_meant() -> None:
    assert said(EPP_GRPC_PROT="1") == ["EPP_GRPC_PROT: unknown variable, did you mean EPP_GRPC_PORT"]


def test_variables_that_are_like_none_of_ours_are_not_our_business() -> None:
    assert not said(EPP_COLOUR="red", GRPC_PORT="1", EPP_HOST="::1", EPP_GRPC_PORT="9002")
