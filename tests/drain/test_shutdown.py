"""What is written down of the engines' ends agrees with the simulated servers and with the catalog of engines."""

import pytest

from epp.drain.shutdown import ENGINES, AtSigterm, DeadlineFlag, EngineShutdown
from epp.scrape.catalog import EngineCatalog
from epp.sim.config import SimConfig
from epp.sim.engines.base import AtStop, StopStyle
from epp.sim.engines.catalog import make_engine

CLIENTS = {"curl", "wget", "python3", "bash"}
every_engine = pytest.mark.parametrize("facts", ENGINES.values(), ids=ENGINES.keys())


def style_of(facts: EngineShutdown) -> StopStyle:
    """What the simulated server of that engine does with SIGTERM when no flag says otherwise."""
    return make_engine(SimConfig(engine=facts.name)).stop_style()


def test_every_engine_of_the_catalog_is_here_under_the_same_name() -> None:
    assert set(ENGINES) == set(EngineCatalog().names)
    assert all(name == facts.name for name, facts in ENGINES.items())


@every_engine
def test_requests_fare_as_in_the_simulated_server(facts: EngineShutdown) -> None:
    style = style_of(facts)
    if style.at_stop is not AtStop.FINISH:
        expected = AtSigterm.LOST
    else:
        expected = AtSigterm.FINISHED if style.deadline_s is None else AtSigterm.FINISHED_UNTIL

    assert facts.at_sigterm is expected


@every_engine
def test_times_are_those_of_the_simulated_server(facts: EngineShutdown) -> None:
    style = style_of(facts)

    assert facts.look_s == (style.idle_check_s or 0.0)
    if facts.at_sigterm is AtSigterm.FINISHED_UNTIL:
        assert facts.deadline is not None
        assert facts.deadline.default_s == style.deadline_s
        assert facts.deadline.waits_for_connections == style.waits_for_connections


@every_engine
def test_the_metrics_are_where_the_catalog_looks_for_them(facts: EngineShutdown) -> None:
    (first, *_) = EngineCatalog().named(facts.name).sources

    assert facts.metrics_port == first.port
    assert facts.has_load == (facts.name != "ollama")


@every_engine
def test_every_image_has_something_to_call_the_picker_with(facts: EngineShutdown) -> None:
    assert CLIENTS & set(facts.tools)
    assert facts.sources


@every_engine
def test_an_engine_that_loses_requests_can_be_told_not_to_or_has_no_flag_at_all(facts: EngineShutdown) -> None:
    if facts.at_sigterm is AtSigterm.LOST:
        assert facts.deadline is None or facts.deadline.default_s == 0
    if facts.at_sigterm is AtSigterm.FINISHED:
        assert facts.deadline is None


def test_a_flag_is_written_as_one_word() -> None:
    assert DeadlineFlag(name="--a", default_s=0.0).written(122) == "--a=122"
