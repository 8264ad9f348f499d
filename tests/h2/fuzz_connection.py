"""Coverage-guided fuzzing of a `Connection` with Atheris: `make fuzz`, or `python -m tests.h2.fuzz_connection [libFuzzer options]`.

Findings are written as `crash-…`; `tests/h2/test_any_bytes.py` replays what is committed in `tests/h2/corpus`.
"""

import sys

import atheris  # type: ignore[import-untyped]  # not a dependency: `make fuzz` installs it

with atheris.instrument_imports(include=["epp.h2", "hpack"]):
    from tests.h2.fuzz_program import Program


def run_one(code: bytes) -> None:
    """What the fuzzer calls with each input."""
    Program(code).run()


if __name__ == "__main__":
    atheris.Setup(sys.argv, run_one)
    atheris.Fuzz()
