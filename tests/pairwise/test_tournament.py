"""Everybody meets everybody, nobody is in two tests, and the pair that waits longest goes first."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.pairwise.tournament import next_pairs, pair_of, pairs_to_measure, rounds

NAMES = st.sets(st.text("abcdefgh", min_size=1, max_size=3), max_size=24)


@given(NAMES)
def test_every_pair_meets_once_and_nobody_plays_twice_in_a_round(nodes: set[str]) -> None:
    games = list(rounds(nodes))
    for one in games:
        players = [name for pair in one for name in pair]
        assert len(players) == len(set(players))
        assert len(one) == len(nodes) // 2
    everyone = [pair for one in games for pair in one]
    assert sorted(everyone) == sorted(itertools.combinations(sorted(nodes), 2))
    assert len(games) <= max(0, len(nodes) - 1 + len(nodes) % 2)


@given(NAMES, st.integers(1, 8))
def test_so_many_rounds_give_so_many_partners(nodes: set[str], partners: int) -> None:
    pairs = pairs_to_measure(nodes, partners)
    assert pairs == pairs_to_measure(nodes)[: len(pairs)]
    most = min(partners, len(nodes) - 1)
    for name in nodes:
        met = sum(name in pair for pair in pairs)
        assert most - 1 <= met <= most
        assert met == most or len(nodes) % 2


@given(NAMES, st.data())
def test_what_starts_is_due_disjoint_oldest_first_and_as_much_as_fits(nodes: set[str], data: st.DataObject) -> None:
    pairs = pairs_to_measure(nodes)
    chosen = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    due = {pair: data.draw(st.floats(0, 200)) for pair in sorted(chosen)}
    busy = data.draw(st.sets(st.sampled_from(sorted(nodes)))) if nodes else set()
    at_most = data.draw(st.integers(0, 12))
    found = next_pairs(pairs, due, 100.0, busy=busy, at_most=at_most)
    players = [name for pair in found for name in pair]
    assert len(players) == len(set(players))
    assert busy.isdisjoint(players)
    assert len(found) <= at_most
    assert all(due.get(pair, 0.0) <= 100.0 for pair in found)
    ages = [due.get(pair, -1.0) for pair in found]
    assert ages == sorted(ages)
    if len(found) < at_most:
        taken = busy | set(players)
        assert not [one for one in pairs if due.get(one, 0.0) <= 100.0 and taken.isdisjoint(one)]
    for one in pairs:
        # Nobody who was due longer and whose nodes are free to the end was passed over.
        if due.get(one, -1.0) < max(ages, default=-2.0):
            assert not (busy | set(players)).isdisjoint(one)


@given(st.integers(2, 9), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_tournament_with_tests_of_any_length_measures_each_pair_once(
    count: int, at_once: int, chance: random.Random
) -> None:
    nodes = [f"node-{n}" for n in range(count)]
    pairs, due, running, played, now_s = pairs_to_measure(nodes), {}, {}, [], 0.0
    while len(played) < len(pairs):
        busy = {name for pair in running for name in pair}
        for pair in next_pairs(pairs, due, now_s, busy=busy, at_most=at_once - len(running)):
            running[pair] = now_s + chance.uniform(1, 10)
        ended = min(running, key=lambda one: running[one])
        now_s = running.pop(ended)
        played.append(ended)
        due[ended] = now_s + 1e6
    assert sorted(played) == sorted(pairs)
    assert not next_pairs(pairs, due, now_s, at_most=9)


def test_nodes_come_and_go() -> None:
    due = dict.fromkeys(pairs_to_measure("abcd"), 500.0)
    assert next_pairs(pairs_to_measure("acd"), due, 100.0, at_most=9) == []
    found = next_pairs(pairs_to_measure("abcde"), due, 100.0, at_most=9)
    assert len(found) == 1
    assert "e" in found[0]
    assert pair_of("b", "a") == ("a", "b")


def test_the_pair_that_waits_longest_goes_first_and_one_that_never_was_before_it() -> None:
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    due = {("a", "b"): 50.0, ("c", "d"): 10.0}
    assert next_pairs(pairs, due, 100.0, at_most=2) == [("e", "f"), ("c", "d")]
