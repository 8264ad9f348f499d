"""LMDeploy: two queues, and gauges that stand still for ten seconds."""

from epp.scrape.engines.lmdeploy import LMDEPLOY
from tests.scrape.engines.reading import read
from tests.scrape.pages import renamed, sample_page


def test_both_queues_count() -> None:
    page = sample_page("lmdeploy-saturated.txt")
    without_the_outer_one = renamed(page, b"lmdeploy:num_api_requests_waiting", b"lmdeploy:other")

    assert read(LMDEPLOY, page).waiting_requests == 31 + 240
    assert read(LMDEPLOY, without_the_outer_one).waiting_requests == 31


def test_ranks_are_summed() -> None:
    page = 'lmdeploy:num_requests_running{engine="0"} 3.0\nlmdeploy:num_requests_running{engine="1"} 4.0\n'

    assert read(LMDEPLOY, page).running_requests == 7


def test_it_is_read_at_most_once_a_second() -> None:
    assert [source.min_interval_s for source in LMDEPLOY.sources] == [1.0]
