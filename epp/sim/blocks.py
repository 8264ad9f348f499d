"""The blocks of a KV cache: allocation, reuse of prefixes by block hash, and eviction of the least recently freed."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A fixed number of blocks, each of them free, plain (in use), shared (in use, named by a hash) or idle.

    An idle block belongs to nobody but still holds what its hash names. It counts as free, as in vLLM: an idle server
    with a warm cache has a usage of zero. A hash names a block together with everything before it, so that the longest
    known run of hashes from the start of a prompt is the part of the prompt that need not be computed.
    """

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.evicted_blocks = 0
        self._plain = 0
        self._shared: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used_blocks(self) -> int:
        """Blocks that some request holds; a block held by several counts once."""
        return self._plain + len(self._shared)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, idle ones among them."""
        return self.total_blocks - self.used_blocks

    @property
    def idle_blocks(self) -> int:
        """Free blocks that still hold something that can be used again."""
        return len(self._idle)

    def match(self, hashes: Sequence[int]) -> int:
        """How many blocks from the start of `hashes` are in the cache."""
        for index, block in enumerate(hashes):
            if block not in self._shared and block not in self._idle:
                return index
        return len(hashes)

    def fits(self, cached: Sequence[int], new_blocks: int) -> bool:
        """Whether the blocks named in `cached` (all in the cache) and `new_blocks` more can be held at once."""
        woken = sum(1 for block in cached if block in self._idle)
        return self.free_blocks >= woken + new_blocks

    def hold(self, hashes: Sequence[int]) -> None:
        """Hold blocks that are in the cache."""
        for block in hashes:
            if block in self._shared:
                self._shared[block] += 1
            else:
                del self._idle[block]
                self._shared[block] = 1

    def take(self, count: int) -> bool:
        """Hold `count` empty blocks, evicting idle ones as needed; False, and nothing is held, when there are too few."""
        if count > self.free_blocks:
            return False
        empty = self.free_blocks - len(self._idle)
        for _ in range(count - empty):
            self._idle.popitem(last=False)
            self.evicted_blocks += 1
        self._plain += count
        return True

    def name(self, block: int) -> bool:
        """Give a plain block that is full its hash; False when another block has it (the plain one stays plain)."""
        if block in self._shared or block in self._idle:
            return False
        self._plain -= 1
        self._shared[block] = 1
        return True

    def release(self, hashes: Sequence[int], plain: int) -> None:
        """Let go of blocks: the plain ones become empty, the named ones idle, the end of the prompt first to be evicted."""
        self._plain -= plain
        for block in reversed(hashes):
            left = self._shared[block] - 1
            if left:
                self._shared[block] = left
            else:
                del self._shared[block]
                self._idle[block] = None
