"""What sessions share."""

from epp.extproc.exchange import WarnOnce


class Log:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, **fields: object) -> None:
        self.warnings.append(event)


def test_each_thing_is_warned_of_once() -> None:
    log = Log()
    warn_once = WarnOnce(log)
    for event in ("a", "b", "a"):
        warn_once(event)
    assert log.warnings == ["a", "b"]
