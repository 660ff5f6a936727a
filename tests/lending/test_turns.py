"""Who returns next into a queue's room, and what is open to new workloads meanwhile."""

import pytest

from kopt.policies.lending.returns import HeldWorkload, Room, Turn, overdue, resumed, turn

NOW_S, PATIENCE_S = 1_000_000.0, 3600.0
ROOM = Room(usable=10_000, used=2_000, closed=1_000, most=16_000)


def recent(name: str, gpus: int, order: int = 1) -> HeldWorkload:
    return HeldWorkload(name, gpus, order, NOW_S - PATIENCE_S)


def late(name: str, gpus: int, order: int = 1) -> HeldWorkload:
    return HeldWorkload(name, gpus, order, NOW_S - PATIENCE_S - 1)


def test_those_let_go_before_have_their_room_first() -> None:
    back = [recent("back", 5_000)]
    assert turn(ROOM, [recent("a", 3_000, 2)], back, NOW_S) == Turn(("a",), 10_000)
    assert turn(ROOM, [recent("a", 4_000, 2)], back, NOW_S) == Turn((), 10_000)
    exact = [recent("back", 8_000)]
    assert turn(ROOM, [recent("a", 1_000, 2)], exact, NOW_S) == Turn((), 10_000)


def test_while_one_waits_too_long_only_what_those_need_is_open_who_were_let_go() -> None:
    held = [late("large", 9_000)]
    assert turn(ROOM, held, [recent("back", 3_000)], NOW_S) == Turn((), 2_000 + 3_000)
    assert turn(ROOM, held, [recent("back", 3_000), recent("too", 4_000)], NOW_S) == Turn((), 2_000 + 7_000)
    assert turn(ROOM, held, [recent("back", 3_000), recent("not", 6_000)], NOW_S) == Turn((), 2_000 + 3_000)
    small = recent("small", 2_000, order=0)
    assert turn(ROOM, [small, *held], [recent("back", 3_000)], NOW_S) == Turn(("small",), 2_000 + 5_000)
    assert turn(ROOM, [small, *held], [], NOW_S) == Turn(("small",), 2_000 + 2_000)


def test_what_is_closed_stays_usable_while_one_waits_too_long() -> None:
    held, back = [late("large", 9_000)], [recent("back", 3_000)]
    assert turn(Room(10_000, 2_000, 7_000, 16_000), held, back, NOW_S) == Turn((), 7_000)
    assert turn(Room(10_000, 2_000, 7_000, 16_000), held, [], NOW_S) == Turn((), 7_000)
    assert turn(Room(10_000, 2_000, 12_000, 16_000), held, [], NOW_S) == Turn((), 10_000)


def test_where_one_let_go_waits_too_long_for_its_room_nobody_else_is_let_go() -> None:
    back = [late("stuck", 9_000)]
    assert turn(ROOM, [recent("a", 1_000)], back, NOW_S) == Turn((), 1_000)
    fits = [recent("fits", 4_000, order=2), late("stuck", 9_000, order=1)]
    assert turn(ROOM, [recent("a", 1_000)], fits, NOW_S) == Turn((), 2_000 + 4_000)
    two = [late("stuck", 9_000, order=1), recent("next", 9_000, order=2)]
    assert turn(ROOM, [recent("a", 1_000)], two, NOW_S) == Turn((), 1_000)
    patient = [recent("stuck", 9_000)]
    assert turn(ROOM, [recent("a", 1_000)], patient, NOW_S) == Turn(("a",), 10_000)


def test_it_is_one_closed_queue_however_many_wait_too_long() -> None:
    stuck = late("stuck", 9_000)
    assert turn(ROOM, [late("large", 9_000, 2)], [stuck], NOW_S) == Turn((), 1_000)
    assert turn(ROOM, [late("large", 9_000, 2)], [stuck, late("other", 9_000, 3)], NOW_S) == Turn((), 1_000)


def test_the_order_decides_and_among_equals_the_name() -> None:
    waiting = [recent("c", 3_000, 2), recent("b", 3_000, 1), recent("a", 3_000, 2)]
    assert resumed(waiting, 9_000, 16_000, NOW_S) == ["b", "a", "c"]
    assert resumed(waiting, 6_000, 16_000, NOW_S) == ["b", "a"]
    assert resumed(waiting, 5_999, 16_000, NOW_S) == ["b"]
    assert resumed([late("large", 9_000, 1), recent("a", 1_000, 2)], 5_000, 16_000, NOW_S) == []
    assert resumed([late("large", 9_000, 1), recent("a", 1_000, 2)], 5_000, 8_999, NOW_S) == ["a"]
    assert resumed([recent("large", 9_000, 1), recent("a", 5_000, 2)], 5_000, 16_000, NOW_S) == ["a"]


def test_the_first_that_is_not_passed_any_more_is_named() -> None:
    waiting = [late("b", 4_000, 3), late("a", 4_000, 3), recent("new", 4_000, 1), late("huge", 9_000, 2)]
    first = overdue(waiting, 8_000, NOW_S)
    assert first is not None
    assert first.name == "a"
    assert overdue(waiting, 9_000, NOW_S) == waiting[3], "it asks for just what the queue may ever have"
    assert overdue([recent("new", 4_000)], 9_000, NOW_S) is None
    assert overdue([], 9_000, NOW_S) is None


@pytest.mark.parametrize(("gpus", "opened"), [(16_000, 1_000), (16_001, 10_000)])
def test_nobody_waits_behind_one_that_asks_for_more_than_there_ever_is(gpus: int, opened: int) -> None:
    assert turn(ROOM, [late("huge", gpus)], [], NOW_S).open == opened
    assert turn(ROOM, [], [late("huge", gpus)], NOW_S).open == opened
