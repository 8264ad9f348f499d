"""The steps of a Dockerfile, as far as ours goes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction.

    Attributes:
        name: In capitals, such as `RUN`.
        text: What follows, on one line, without comments.
    """

    name: str
    text: str

    @property
    def words(self) -> Sequence[str]:
        """The text cut at spaces."""
        return self.text.split()


@dataclass(slots=True)
class Stage:
    """From one `FROM` to the next.

    Attributes:
        base: The image it starts with.
    """

    base: str
    steps: list[Step] = field(default_factory=list)

    def named(self, name: str) -> list[str]:
        """The texts of all steps of that name."""
        return [step.text for step in self.steps if step.name == name]


def stages(file: Path) -> list[Stage]:
    """The stages of a Dockerfile; `ARG` before the first is left out."""
    found: list[Stage] = []
    for step in _steps(file.read_text()):
        if step.name == "FROM":
            found.append(Stage(step.words[0]))
        elif found:
            found[-1].steps.append(step)
    return found


def _steps(text: str) -> Iterator[Step]:
    """Lines that end in a backslash go on; comments stand anywhere, also between those."""
    whole = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        whole += line.rstrip().removesuffix("\\")
        if not line.rstrip().endswith("\\"):
            name, _, rest = whole.strip().partition(" ")
            yield Step(name.upper(), " ".join(rest.split()))
            whole = ""
