"""Sample pages of model servers, by engine, version and load; `vllm-0.32-real-*` were read from a real server."""

from pathlib import Path

FOLDER = Path(__file__).parent / "expositions"


def sample_page(name: str) -> bytes:
    """The page in the file `name`."""
    return (FOLDER / name).read_bytes()


def renamed(page: bytes, old: bytes, new: bytes) -> bytes:
    """The page with `old` replaced, which must be on it."""
    assert old in page
    return page.replace(old, new)
