"""Where MIG partitions can lie: known counts, and nothing that overlaps."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.gpu_catalogue import find_gpu, gpu_catalogue
from kopt.core.hardware.mig import MigError, MigGeometry, mig_geometry
from kopt.policies.partitions.layouts import EMPTY, Layout, layouts_of

WITH_MIG = [model for model in gpu_catalogue().values() if any("g." in item.name for item in model.partitions)]
H100 = mig_geometry(find_gpu("h100-80gb"))


def _check(geometry: MigGeometry, layout: Layout) -> None:
    """What the hardware allows, written without the numbers of layouts."""
    taken: set[int] = set()
    slices = 0
    for number, start in layout:
        profile = geometry.profiles[number]
        slots = set(range(start, start + profile.memory_slots))
        assert start in profile.starts
        assert not taken & slots
        assert max(slots) < geometry.memory_slots
        taken |= slots
        slices += profile.compute_slices
    assert slices <= geometry.compute_slices


@pytest.mark.parametrize("model", WITH_MIG, ids=lambda model: model.name)
def test_each_model_takes_as_many_of_a_profile_as_its_driver_says(model: object) -> None:
    """The counts of the catalogue are those of `nvidia-smi mig -lgip`."""
    geometry = mig_geometry(model)  # type: ignore[arg-type]
    layouts = layouts_of(geometry)
    counts = {partition.name: partition.count for partition in model.partitions}  # type: ignore[attr-defined]
    assert {profile.name: layouts.capacity[EMPTY, at] for at, profile in enumerate(geometry.profiles)} == counts


def test_an_h100_has_723_layouts_of_which_78_are_full() -> None:
    layouts = layouts_of(H100)
    full = [at for at in range(len(layouts)) if not layouts.capacity[at].any()]
    assert (len(layouts), len(full)) == (723, 78)
    assert len({tuple(sorted(profile for profile, _ in layouts.layouts[at])) for at in full}) == 38
    for layout in layouts.layouts:
        _check(H100, layout)


def test_4g_and_3g_share_a_gpu_and_two_4g_do_not() -> None:
    layouts = layouts_of(H100)
    three, four = H100.index("3g.40gb"), H100.index("4g.40gb")
    with_four = layouts.following[EMPTY, four].max()
    assert layouts.capacity[with_four, three] == 1
    assert layouts.capacity[with_four, four] == 0


@given(seed=st.integers(0, 10**6))
def test_what_was_put_can_be_taken_away_in_any_order(seed: int) -> None:
    draw, layouts, at = random.Random(seed), layouts_of(H100), EMPTY
    put = []
    for _ in range(draw.randrange(1, 12)):
        profile = draw.randrange(len(H100.profiles))
        options = [
            (int(start), int(following))
            for start, following in zip(layouts.starts[at, profile], layouts.following[at, profile], strict=True)
            if following >= 0
        ]
        if options:
            start, at = draw.choice(options)
            put.append((profile, start))
            assert Counter(layouts.layouts[at]) == Counter(put)
    draw.shuffle(put)
    for instance in put:
        at = layouts.without(at, instance)
    assert at == EMPTY


def test_what_is_not_there_cannot_be_taken_away() -> None:
    with pytest.raises(KeyError):
        layouts_of(H100).without(EMPTY, (0, 0))


def test_a_gpu_without_mig_and_an_unknown_profile_are_named() -> None:
    with pytest.raises(MigError, match="V100-SXM2-16GB cannot be partitioned by MIG"):
        mig_geometry(find_gpu("V100"))
    with pytest.raises(MigError, match=r"no partitions '9g.1gb'; there are 1g.10gb, "):
        H100.index("9g.1gb")
