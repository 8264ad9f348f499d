"""epp.envoy.typed: messages as text."""

import json
from typing import Any

import pytest
import yaml
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.typed import address, as_dict, as_json, as_yaml, seconds, typed


def test_field_names_are_those_of_envoy_with_their_digits() -> None:
    rendered = as_dict(cluster.OutlierDetection(consecutive_5xx=3, enforcing_consecutive_5xx=0))

    assert rendered == {"consecutive_5xx": 3, "enforcing_consecutive_5xx": 0}


def test_a_packed_message_carries_its_type() -> None:
    extension = core.TypedExtensionConfig(name="x", typed_config=typed(core.Http2ProtocolOptions(max_concurrent_streams=7)))

    assert as_dict(extension)["typed_config"] == {
        "@type": "type.googleapis.com/envoy.config.core.v3.Http2ProtocolOptions",
        "max_concurrent_streams": 7,
    }


def test_addresses_and_durations_are_written_as_envoy_reads_them() -> None:
    check = core.HealthCheck(timeout=seconds(0.5), interval=seconds(90))

    assert as_dict(address(HostPort("::1", 80))) == {"socket_address": {"address": "::1", "port_value": 80}}
    assert as_dict(check) == {"timeout": "0.500s", "interval": "90s"}


def test_yaml_and_json_say_the_same() -> None:
    message = bootstrap(EnvoyOptions(access_log=True))

    assert yaml.safe_load(as_yaml(message)) == json.loads(as_json(message)) == as_dict(message)


def test_a_misspelt_field_cannot_be() -> None:
    misspelt: dict[str, Any] = {"max_conections": 1}

    with pytest.raises(ValueError, match="max_conections"):
        cluster.CircuitBreakersThresholds(**misspelt)
