"""The table of the rollouts: engine × what was left undone."""

from collections.abc import Iterable, Sequence

from tests.bench.table import columns
from tests.rollout.practice import Practice
from tests.rollout.scene import Rollout
from tests.rollout.tally import Tally


def table_lines(rollouts: Sequence[Rollout]) -> list[str]:
    """One line an engine; a cell says how many requests were lost or cut, of how many, in how many rollouts."""
    engines = list(dict.fromkeys(rollout.engine for rollout in rollouts))
    practices = list(dict.fromkeys(rollout.practice for rollout in rollouts))
    rows = [[engine, *(_cell(rollouts, engine, practice) for practice in practices)] for engine in engines]
    return columns([["lost or cut", *map(str, practices)], *rows])


def fault_lines(rollouts: Iterable[Rollout]) -> list[str]:
    """What was seen of the requests that were lost or cut, one line for each such rollout."""
    return [str(rollout) for rollout in rollouts if rollout.tally.failed]


def _cell(rollouts: Iterable[Rollout], engine: str, practice: Practice) -> str:
    tallies = [each.tally for each in rollouts if each.engine == engine and each.practice == practice]
    if not tallies:
        return "-"
    tally = sum(tallies, Tally())
    times = f", {len(tallies)} rollouts" if len(tallies) > 1 else ""
    return f"{tally.failed} of {tally.sent}{times}"
