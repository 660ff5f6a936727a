"""PyTorch's caching allocator for GPU memory, simulated block by block.

What it reproduces, from c10/cuda/CUDACachingAllocator.cpp (names of its functions in the comments) and the constants
of c10/core/AllocatorConfig.h: sizes rounded up to 512 bytes; requests up to 1 MiB from segments of 2 MiB, up to 10 MiB
from segments of 20 MiB, larger ones from a segment of their own rounded up to 2 MiB; best fit within pool and stream;
a block split when more than 1 MiB (small pool: 512 bytes) is left over; free neighbours joined; segments kept until
memory runs out, then given back and the request tried once more. Also ``max_split_size``, rounding divisions, garbage
collection, expandable segments, blocks used on other streams.

Addresses are those of an imaginary device whose driver never reuses one; they matter only as a tie-break.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from kopt.core.units import MIB
from kopt.tracing.allocator_settings import NO_LIMIT, AllocatorSettings

MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
"""Largest request that the small pool serves."""
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB
EVENT_LAG = 64
"""Allocations until a block that another stream used is free again. The truth depends on how far that stream lags."""


class OutOfMemory(Exception):
    """The capacity does not suffice, even with every unused segment given back."""

    def __init__(self, requested_bytes: int, reserved_bytes: int, capacity_bytes: int) -> None:
        super().__init__(
            f"{requested_bytes:,} bytes do not fit beside {reserved_bytes:,} reserved "
            f"of {capacity_bytes:,} that can be had"
        )
        self.requested_bytes, self.reserved_bytes, self.capacity_bytes = requested_bytes, reserved_bytes, capacity_bytes


@dataclass(frozen=True)
class BlockState:
    """A block as it can be looked at; ``mapped`` is false for reserved addresses without memory."""

    address: int
    size: int
    free: bool
    mapped: bool
    small: bool
    stream: int


class _Block:
    """A range of addresses within a segment; neighbours are linked. ``mapped`` is false for reserved addresses only."""

    __slots__ = ("address", "born", "expandable", "following", "free", "mapped", "pool", "preceding", "size", "streams")

    def __init__(
        self, pool: "_Pool", address: int, size: int, *, expandable: bool = False, mapped: bool = True
    ) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.preceding: _Block | None = None
        self.following: _Block | None = None
        self.free = False
        self.mapped, self.expandable = mapped, expandable
        self.streams: set[int] | None = None
        self.born = 0

    @property
    def whole(self) -> bool:
        """Does it make up its segment?"""
        return self.preceding is None and self.following is None


@dataclass
class _Pool:
    """Free blocks of one stream, small or large. ``free`` is sorted by size, then address; ``unmapped`` by address."""

    small: bool
    stream: int
    free: list[tuple[int, int]] = field(default_factory=list)
    unmapped: list[int] = field(default_factory=list)


class CachingAllocator:
    """One process on one device. ``capacity_bytes`` is what the allocator can have; without one it never runs out.

    ``allocated``, ``reserved`` and their peaks are the figures of ``torch.cuda.memory_allocated`` and
    ``memory_reserved``; ``retries`` counts allocations that first had to give cached segments back.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        *,
        event_lag: int = EVENT_LAG,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        whole = NO_LIMIT if capacity_bytes is None else capacity_bytes
        fraction = self.settings.memory_fraction
        self.capacity_bytes = whole if fraction is None else int(whole * fraction)
        self.event_lag = event_lag
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._at: dict[int, _Block] = {}
        self._of: dict[int, _Block] = {}
        self._pending: deque[tuple[int, _Block]] = deque()
        self._next_address = ROUND_LARGE_BYTES
        self._clock = self._large_calls = 0
        self._collects = fraction is not None and self.settings.garbage_collection_threshold > 0
        self._splits_all = self.settings.max_split_bytes >= NO_LIMIT
        self._expands = self.settings.expandable_segments

    def malloc(self, storage: int, requested_bytes: int, stream: int = 0) -> None:
        """Give ``storage`` a block. Raises OutOfMemory, ValueError for a storage that has one already."""
        if storage in self._of:
            raise ValueError(f"storage {storage} has a block already")
        if requested_bytes <= 0:
            return
        self._clock += 1
        if self._pending:
            self._settle(self._clock - self.event_lag)
        size = self._rounded(requested_bytes)
        small = size <= SMALL_BYTES
        pool = self._pools.get((small, stream))
        if pool is None:
            pool = self._pools[small, stream] = _Pool(small, stream)
        if self._collects and not small:
            self._large_calls += 1
        block = self._best_fit(pool, size) or self._grow(pool, size, requested_bytes)
        rest = block.size - size
        if rest >= MIN_BLOCK_BYTES and self._should_split(pool, size, rest):
            self._split(block, size)
        block.free = False
        self._of[storage] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, storage: int) -> None:
        """Take the block of ``storage`` back into its pool; storages of no bytes have none."""
        block = self._of.pop(storage, None)
        if block is None:
            return
        self.allocated -= block.size
        if block.streams:
            self._pending.append((self._clock, block))
        else:
            self._free_block(block)

    def record_stream(self, storage: int, stream: int) -> None:
        """Another stream uses the block: once freed it cannot be taken again before that stream has passed."""
        block = self._of.get(storage)
        if block is not None and stream != block.pool.stream:
            block.streams = {stream, *(block.streams or ())}

    def empty_cache(self) -> None:
        """Give every unused segment back to the device (release_cached_blocks)."""
        self._settle(self._clock)
        for pool in self._pools.values():
            for _, address in list(pool.free):
                block = self._at[address]
                if block.expandable:
                    self._unmap(block)
                elif block.whole:
                    self._release(block)

    def blocks(self) -> list[BlockState]:
        """Every block there is, by address: taken, free or, in expandable segments, without memory behind it."""
        ordered = sorted(self._at.values(), key=lambda block: block.address)
        return [
            BlockState(block.address, block.size, block.free, block.mapped, block.pool.small, block.pool.stream)
            for block in ordered
        ]

    def _rounded(self, size: int) -> int:
        """round_size"""
        if size < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self.settings.divisions(size) if self.settings.roundup_divisions else 0
        if divisions > 1 and size > MIN_BLOCK_BYTES * divisions:
            # roundup_power2_next_division
            floor = 1 << (size.bit_length() - 1)
            step = floor // divisions
            return size if size == floor else (size + step - 1) // step * step
        return (size + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES

    def _best_fit(self, pool: _Pool, size: int) -> _Block | None:
        """get_free_block: the smallest free block that holds ``size``, taken out of the pool."""
        free = pool.free
        index = bisect_left(free, (size, 0))
        if index == len(free):
            return None
        block = self._at[free[index][1]]
        if block.expandable:
            while index + 1 < len(free):
                other = self._at[free[index + 1][1]]
                if _reach(other) >= _reach(block):
                    break
                index, block = index + 1, other
        if not self._splits_all:
            limit = self.settings.max_split_bytes
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        del free[index]
        return block

    def _should_split(self, pool: _Pool, size: int, rest: int) -> bool:
        """should_split"""
        if pool.small or self._expands:
            return True
        return size < self.settings.max_split_bytes and rest > SMALL_BYTES

    def _split(self, block: _Block, size: int) -> None:
        """Keep the first ``size`` bytes; the rest goes back to the pool (alloc_found_block)."""
        pool = block.pool
        rest = _Block(pool, block.address + size, block.size - size, expandable=block.expandable)
        rest.preceding, rest.following = block, block.following
        if rest.following is not None:
            rest.following.preceding = rest
        block.following, block.size = rest, size
        self._insert(rest)

    def _insert(self, block: _Block) -> None:
        block.free, block.born = True, self._large_calls
        self._at[block.address] = block
        insort(block.pool.free, (block.size, block.address))

    def _remove_free(self, block: _Block) -> None:
        """Out of its pool's free blocks."""
        free = block.pool.free
        del free[bisect_left(free, (block.size, block.address))]

    def _free_block(self, block: _Block) -> None:
        """free_block: join free neighbours, then insert."""
        block.streams = None
        other = block.preceding
        if other is not None and other.free and other.mapped == block.mapped:
            self._remove_free(other)
            del self._at[block.address]
            block.address, block.size = other.address, block.size + other.size
            block.preceding = other.preceding
            if block.preceding is not None:
                block.preceding.following = block
        other = block.following
        if other is not None and other.free and other.mapped == block.mapped:
            self._remove_free(other)
            del self._at[other.address]
            block.size += other.size
            block.following = other.following
            if block.following is not None:
                block.following.preceding = block
        self._insert(block)

    def _settle(self, until: int) -> None:
        """process_events: blocks whose other streams have passed are free."""
        while self._pending and self._pending[0][0] <= until:
            self._free_block(self._pending.popleft()[1])

    def _grow(self, pool: _Pool, size: int, requested_bytes: int) -> _Block:
        """A new block from the device; where it has none left, cached segments go first (malloc)."""
        if self._collects:
            self._collect()
        block = self._from_device(pool, size)
        if block is None:
            self.retries += 1
            if self._release_available(pool, size):
                block = self._from_device(pool, size)
        if block is None:
            self.empty_cache()
            block = self._from_device(pool, size)
        if block is None:
            raise OutOfMemory(requested_bytes, self.reserved, self.capacity_bytes)
        return block

    def _from_device(self, pool: _Pool, size: int) -> _Block | None:
        """alloc_block"""
        if self._expands:
            return self._expand(pool, size)
        segment = self._segment_bytes(size)
        if self.reserved + segment > self.capacity_bytes:
            return None
        self._reserve(segment)
        block = _Block(pool, self._next_address, segment)
        # A gap between segments, so that neighbours in address are never taken for neighbours in a segment.
        self._next_address += segment + ROUND_LARGE_BYTES
        self._at[block.address] = block
        return block

    def _segment_bytes(self, size: int) -> int:
        """get_allocation_size"""
        if size <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_LARGE_BYTES:
            return max(self.settings.large_segment_bytes, _rounded_up(size, ROUND_LARGE_BYTES))
        return _rounded_up(size, ROUND_LARGE_BYTES)

    def _reserve(self, amount: int) -> None:
        self.reserved += amount
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _release(self, block: _Block) -> None:
        """release_block: a free segment goes back to the device."""
        self._remove_free(block)
        del self._at[block.address]
        self.reserved -= block.size

    def _release_available(self, pool: _Pool, size: int) -> bool:
        """release_available_cached_blocks: unsplittable blocks of the stream, the least that suffices."""
        if self._splits_all:
            return False
        limit = self.settings.max_split_bytes
        wanted = max(size, limit)
        index = bisect_left(pool.free, (wanted, 0))
        if index < len(pool.free) and not self._at[pool.free[index][1]].expandable:
            self._release(self._at[pool.free[index][1]])
            return True
        released = 0
        for amount, address in reversed(pool.free[:index]):
            if released >= wanted or amount < limit:
                break
            if not self._at[address].expandable:
                self._release(self._at[address])
                released += amount
        return released >= wanted

    def _collect(self) -> None:
        """garbage_collect_cached_blocks: the older half of unused large segments, until below the threshold."""
        limit = int(self.settings.garbage_collection_threshold * self.capacity_bytes)
        target = self.reserved - limit
        blocks = [self._at[address] for pool in self._pools.values() if not pool.small for _, address in pool.free]
        unused = [block for block in blocks if block.whole and not block.expandable]
        while target > 0 and unused:
            mean = sum(block.born for block in unused) / len(unused)
            for block in unused:
                if block.born <= mean:
                    target -= block.size
                    self._release(block)
            unused = [block for block in unused if block.born > mean]

    def _expand(self, pool: _Pool, size: int) -> _Block | None:
        """try_allocate_expandable_block: map pages behind a free block of the pool's segment until ``size`` fits."""
        block = self._expandable(pool, size)
        if not block.mapped and (mapped := self._map(block, min(block.size, size))) is not None:
            block = mapped
        while block.mapped and block.size < size:
            beyond = block.following
            if beyond is None or beyond.mapped:
                return None
            grown = self._map(beyond, min(size - block.size, beyond.size))
            if grown is None:
                return None
            block = grown
        if not block.mapped:
            return None
        self._remove_free(block)
        return block

    def _expandable(self, pool: _Pool, size: int) -> _Block:
        """find_expandable_block: the first run of free and unmapped blocks with room; a new range without one."""
        for address in pool.unmapped:
            block = self._at[address]
            if block.preceding is not None and block.preceding.free:
                block = block.preceding
            room = 0
            item: _Block | None = block
            while room < size and item is not None and item.free:
                room, item = room + item.size, item.following
            if room >= size:
                return block
        # Addresses cost nothing: 1 1/8 of the device, as PyTorch reserves.
        reach = max(min(self.capacity_bytes, 1 << 44) * 9 // 8, size)
        reach = _rounded_up(reach, self._page(pool))
        block = _Block(pool, self._next_address, reach, expandable=True, mapped=False)
        self._next_address += reach + ROUND_LARGE_BYTES
        block.free = True
        self._at[block.address] = block
        insort(pool.unmapped, block.address)
        return block

    def _page(self, pool: _Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.small else self.settings.large_segment_bytes

    def _map(self, block: _Block, size: int) -> _Block | None:
        """map_block: back the first pages of an unmapped block; None when the device has none left."""
        pool = block.pool
        amount = min(_rounded_up(size, self._page(pool)), block.size)
        if self.reserved + amount > self.capacity_bytes:
            return None
        pool.unmapped.remove(block.address)
        if amount < block.size:
            rest = _Block(pool, block.address + amount, block.size - amount, expandable=True, mapped=False)
            rest.free = True
            rest.preceding, rest.following = block, block.following
            if rest.following is not None:
                rest.following.preceding = rest
            block.following, block.size = rest, amount
            self._at[rest.address] = rest
            insort(pool.unmapped, rest.address)
        block.mapped = True
        self._reserve(amount)
        self._free_block(block)
        return block

    def _unmap(self, block: _Block) -> None:
        """unmap_block: give back the whole pages inside a free block; what is left of it at both ends stays."""
        page, pool = self._page(block.pool), block.pool
        base = self._base(block)
        first = base + _rounded_up(block.address - base, page)
        last = base + (block.address + block.size - base) // page * page
        if last <= first:
            return
        self._remove_free(block)
        if block.address < first:
            before = _Block(pool, block.address, first - block.address, expandable=True)
            before.preceding, before.following = block.preceding, block
            if before.preceding is not None:
                before.preceding.following = before
            block.preceding = before
            self._insert(before)
        end = block.address + block.size
        if last < end:
            after = _Block(pool, last, end - last, expandable=True)
            after.preceding, after.following = block, block.following
            if after.following is not None:
                after.following.preceding = after
            block.following = after
            self._insert(after)
        if self._at.get(block.address) is block:
            del self._at[block.address]
        block.address, block.size, block.mapped, block.free = first, last - first, False, True
        self.reserved -= block.size
        self._join_unmapped(block)

    def _join_unmapped(self, block: _Block) -> None:
        pool = block.pool
        for other in (block.preceding, block.following):
            if other is None or other.mapped:
                continue
            pool.unmapped.remove(other.address)
            del self._at[other.address]
            if other is block.preceding:
                block.address, block.preceding = other.address, other.preceding
                if block.preceding is not None:
                    block.preceding.following = block
            else:
                block.following = other.following
                if block.following is not None:
                    block.following.preceding = block
            block.size += other.size
        self._at[block.address] = block
        insort(pool.unmapped, block.address)

    @staticmethod
    def _base(block: _Block) -> int:
        """Where the block's segment begins; pages are counted from there."""
        while block.preceding is not None:
            block = block.preceding
        return block.address


def _reach(block: _Block) -> int:
    """How large a block of an expandable segment can become."""
    beyond = block.following
    return block.size + (beyond.size if beyond is not None and not beyond.mapped else 0)


def _rounded_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
