"""What every source of endpoints looks like from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeAlias

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds; `asyncio.sleep`, or a fake in tests."""


class Discovery(Protocol):
    """A source of endpoints. It calls `PoolState.sync` with the whole membership whenever that changes."""

    async def run(self) -> None:
        """Keep the pool equal to the source; never returns, ends by cancellation."""
        ...


async def wait_for_cancellation() -> NoReturn:
    """What a source does that has nothing more to tell."""
    while True:
        await asyncio.Event().wait()
