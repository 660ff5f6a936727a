"""The simulated caching allocator: PyTorch's published rules, invariants, and a plain second implementation."""

import itertools
from collections.abc import Sequence

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.units import GIB, MIB
from kopt.tracing.allocator import CachingAllocator, OutOfMemory
from kopt.tracing.allocator_settings import AllocatorSettings

SIZES = st.one_of(
    st.integers(1, 2048), st.integers(1, 2 * MIB), st.integers(MIB, 30 * MIB), st.sampled_from([0, 512, MIB, MIB + 1])
)
ACTIONS = st.lists(st.tuples(st.sampled_from("aaafffre"), SIZES, st.integers(0, 10**6)), max_size=120)
CONFIGURATIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "expandable_segments:True,large_segment_size_mb:6",
)


def _play(allocator: CachingAllocator, actions: Sequence[tuple[str, int, int]]) -> dict[int, int]:
    """Carry actions out; returns the storages alive with the bytes they asked for."""
    live: dict[int, int] = {}
    for storage, (action, size, pick) in enumerate(actions):
        chosen = sorted(live)[pick % len(live)] if live else -1
        if action == "a":
            try:
                allocator.malloc(storage, size, stream=pick % 2)
            except OutOfMemory:
                continue
            live[storage] = size
        elif action == "f" and live:
            allocator.free(chosen)
            del live[chosen]
        elif action == "r" and live:
            allocator.record_stream(chosen, 7)
        elif action == "e":
            allocator.empty_cache()
        _check(allocator, sum(live.values()))
    return live


def _check(allocator: CachingAllocator, asked_bytes: int) -> None:
    blocks = allocator.blocks()
    for before, after in itertools.pairwise(blocks):
        assert before.address + before.size <= after.address, "two blocks overlap"
        touching = before.address + before.size == after.address
        assert not (touching and before.free and after.free and before.mapped == after.mapped), "neighbours not joined"
    mapped = [one for one in blocks if one.mapped]
    assert sum(one.size for one in mapped) == allocator.reserved
    assert all(one.size > 0 and one.size % 512 == 0 for one in blocks)
    assert asked_bytes <= allocator.allocated <= allocator.reserved <= allocator.capacity_bytes
    assert allocator.allocated <= sum(one.size for one in mapped if not one.free)
    assert allocator.peak_allocated >= allocator.allocated
    assert allocator.peak_reserved >= allocator.reserved


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("capacity", [None, 96 * MIB])
@given(actions=ACTIONS)
@settings(max_examples=examples(25), deadline=None)
def test_memory_is_conserved_and_no_two_blocks_overlap(
    configuration: str, capacity: int | None, actions: list[tuple[str, int, int]]
) -> None:
    allocator = CachingAllocator(AllocatorSettings.parse(configuration), capacity, event_lag=3)
    live = _play(allocator, actions)
    for storage in live:
        allocator.free(storage)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0, "an unused segment was kept"


class Plain:
    """The same rules written down again without any index: segments are lists of [size, free]."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []
        self.allocated = self.reserved = 0
        self.of: dict[int, list[int]] = {}

    def malloc(self, storage: int, asked: int) -> None:
        if not asked:
            return
        size = max(512, -(-asked // 512) * 512)
        small = size <= MIB
        fitting = [
            (block[0], n, m)
            for n, (is_small, blocks) in enumerate(self.segments)
            if is_small == small
            for m, block in enumerate(blocks)
            if block[1] and block[0] >= size
        ]
        if fitting:
            _, n, m = min(fitting)
        else:
            whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((small, [[whole, 1]]))
            self.reserved += whole
            n, m = len(self.segments) - 1, 0
        blocks = self.segments[n][1]
        rest = blocks[m][0] - size
        if rest >= 512 if small else rest > MIB:
            blocks[m][0] = size
            blocks.insert(m + 1, [rest, 1])
        blocks[m][1] = 0
        self.of[storage] = blocks[m]
        self.allocated += blocks[m][0]

    def free(self, storage: int) -> None:
        block = self.of.pop(storage, None)
        if block is None:
            return
        self.allocated -= block[0]
        block[1] = 1
        for _, blocks in self.segments:
            merged: list[list[int]] = []
            for one in blocks:
                if merged and merged[-1][1] and one[1]:
                    merged[-1][0] += one[0]
                else:
                    merged.append(one)
            blocks[:] = merged


@given(actions=st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10**6)), max_size=150))
@settings(max_examples=examples(150), deadline=None)
def test_it_does_what_the_rules_written_down_again_do(actions: list[tuple[bool, int, int]]) -> None:
    ours, plain, live = CachingAllocator(), Plain(), list[int]()
    for storage, (allocates, size, pick) in enumerate(actions):
        if allocates or not live:
            ours.malloc(storage, size)
            plain.malloc(storage, size)
            live.append(storage)
        else:
            gone = live.pop(pick % len(live))
            ours.free(gone)
            plain.free(gone)
        assert (ours.allocated, ours.reserved) == (plain.allocated, plain.reserved)


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (33 * MIB + 1, 34 * MIB, 34 * MIB),  # less than 1 MiB would be left over: not split, and counted whole
        (35 * MIB - 512, 36 * MIB - 512 - MIB, 36 * MIB),
    ],
)
def test_a_first_request_takes_a_segment_of_its_class(asked: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    for storage, size in enumerate((40, 30, 20)):
        allocator.malloc(storage, size * MIB)
    for storage in (0, 1, 2):
        allocator.free(storage)
    allocator.malloc(3, 25 * MIB)
    assert [one.size for one in allocator.blocks() if not one.free] == [25 * MIB]
    allocator.malloc(4, 40 * MIB)
    assert allocator.reserved == 90 * MIB


def test_streams_and_pools_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, 30 * MIB, stream=0)
    allocator.free(1)
    allocator.malloc(2, 30 * MIB, stream=1)
    assert allocator.reserved == 60 * MIB
    allocator.malloc(3, MIB, stream=0)
    assert allocator.reserved == 62 * MIB


def test_before_it_gives_up_it_gives_back_what_is_unused() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.malloc(1, 60 * MIB)
    allocator.free(1)
    allocator.malloc(2, 70 * MIB)
    assert (allocator.retries, allocator.reserved, allocator.peak_reserved) == (1, 70 * MIB, 70 * MIB)
    with pytest.raises(OutOfMemory, match="do not fit beside"):
        allocator.malloc(3, 40 * MIB)


def test_a_fragmented_segment_can_fail_where_expandable_segments_do_not() -> None:
    def fill(configuration: str) -> CachingAllocator:
        allocator = CachingAllocator(AllocatorSettings.parse(configuration), 100 * MIB)
        allocator.malloc(0, 100 * MIB)
        allocator.free(0)
        for storage in range(1, 11):
            allocator.malloc(storage, 10 * MIB)
        for storage in range(1, 10, 2):
            allocator.free(storage)
        allocator.malloc(99, 40 * MIB)
        return allocator

    with pytest.raises(OutOfMemory):
        fill("")
    assert fill("expandable_segments:True,large_segment_size_mb:10").allocated == 90 * MIB


def test_blocks_used_on_another_stream_come_back_late() -> None:
    allocator = CachingAllocator(event_lag=2)
    allocator.malloc(1, 30 * MIB)
    allocator.record_stream(1, 5)
    allocator.free(1)
    allocator.malloc(2, 30 * MIB)
    assert allocator.reserved == 60 * MIB, "its memory was taken while the other stream may still use it"
    allocator.malloc(3, 512)
    allocator.malloc(4, 30 * MIB)
    assert allocator.reserved == 62 * MIB


def test_oversize_blocks_are_kept_for_oversize_requests() -> None:
    allocator = CachingAllocator(AllocatorSettings.parse("max_split_size_mb:64"))
    allocator.malloc(1, 100 * MIB)
    allocator.free(1)
    allocator.malloc(2, 30 * MIB)
    assert allocator.reserved == 130 * MIB, "a small request split an oversize block"
    allocator.malloc(3, 90 * MIB)
    assert allocator.reserved == 130 * MIB
    assert allocator.allocated == 130 * MIB, "an oversize block is not split"


def test_garbage_is_collected_above_the_threshold_only_with_a_fraction() -> None:
    for configuration, reserved in (
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0", 140 * MIB),
        ("garbage_collection_threshold:0.5", 200 * MIB),
    ):
        allocator = CachingAllocator(AllocatorSettings.parse(configuration), 200 * MIB)
        allocator.malloc(1, 60 * MIB)
        allocator.malloc(2, 60 * MIB)
        allocator.free(1)
        allocator.malloc(3, 80 * MIB)
        assert allocator.reserved == reserved


@pytest.mark.parametrize(
    ("text", "size", "rounded"),
    [
        ("roundup_power2_divisions:4", 1200 * 1024, 1280 * 1024),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 600 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]", 1100 * MIB, 1280 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]", 3 * GIB, 3 * GIB),
    ],
)
def test_sizes_are_rounded_by_the_divisions_of_their_power_of_two(text: str, size: int, rounded: int) -> None:
    allocator = CachingAllocator(AllocatorSettings.parse(text))
    allocator.malloc(1, size)
    assert allocator.allocated == rounded


@given(st.text(max_size=80))
@settings(max_examples=examples(200))
def test_settings_that_cannot_be_read_are_told(text: str) -> None:
    found = AllocatorSettings.parse(text)
    CachingAllocator(found).malloc(1, 5 * MIB)


def test_what_does_not_act_is_kept_apart() -> None:
    found = AllocatorSettings.parse("backend:cudaMallocAsync, expandable_segments:maybe,max_split_size_mb:-3")
    assert found.unknown == ("backend:cudaMallocAsync", "expandable_segments:maybe", "max_split_size_mb:-3")


def test_a_storage_has_one_block() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, 5)
    with pytest.raises(ValueError, match="already"):
        allocator.malloc(1, 5)
