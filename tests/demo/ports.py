"""A port that is to be taken again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.patience import PATIENCE_S

_POLL_S = 0.02


@asynccontextmanager
async def kept_free(port: int) -> AsyncIterator[None]:
    """Nobody else gets this port of 127.0.0.1, which somebody just gave up and will listen on again.

    Nobody listens on it meanwhile. Who asks the kernel for any port does not get it, and who asks for it by its number, with
    SO_REUSEADDR as servers do, may have it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    holder.bind(("127.0.0.1", port))
                except OSError:  # not given up yet
                    await asyncio.sleep(_POLL_S)
                else:
                    break
        yield
