"""Whatever is done to a store of sealed records shows, but for what its documentation says does not."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.audit import (
    FIRST,
    LARGEST_RECORD_BYTES,
    AuditChain,
    AuditError,
    Head,
    SealedRecord,
    StoredRecord,
    digest_of,
    link_of,
    read_record,
    touched,
    verify,
)

CALLER = "system:serviceaccount:kopt-system:kopt-preemption"
texts = st.text(max_size=20)
contents = st.fixed_dictionaries(
    {"at_s": st.floats(0, 2e9), "kind": st.sampled_from(["write", "event"]), "text": texts},
    optional={"after": st.dictionaries(texts, st.integers() | texts | st.none(), max_size=3)},
)


def stored(records: Sequence[tuple[str, SealedRecord]], start: Head | None = None) -> list[StoredRecord]:
    """As an honest store keeps them."""
    head, result = start or Head(), []
    for caller, record in records:
        head = Head(head.position + 1, link_of(head.link, caller, record.digest))
        result.append(StoredRecord(head.position, caller, record, head.link))
    return result


def linked_anew(records: Sequence[StoredRecord], start: Head | None = None) -> list[StoredRecord]:
    """As somebody who owns the store would make it look right again."""
    return stored([(item.caller, item.record) for item in records], start)


@st.composite
def stores(draw: st.DrawFn) -> list[StoredRecord]:
    """Of a few processes, whose records came interleaved."""
    chains = [AuditChain(f"component/{number}") for number in range(draw(st.integers(1, 3)))]
    whose = draw(st.lists(st.sampled_from(chains), min_size=2, max_size=12))
    return stored([(CALLER, chain.seal(draw(contents))) for chain in whose])


@given(stores())
def test_what_nobody_touched_is_whole(records: list[StoredRecord]) -> None:
    assert verify(records) == []
    assert [read_record(item.record).chain for item in records]


@given(stores(), st.data())
def test_a_changed_record_shows(records: list[StoredRecord], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    document = json.loads(records[at].record.text) | {"text": "it was somebody else"}
    text = json.dumps(document)
    kept_hash = SealedRecord(text, records[at].record.digest)
    assert verify([*records[:at], replace(records[at], record=kept_hash), *records[at + 1 :]])
    new_hash = replace(records[at], record=SealedRecord(text, digest_of(text)))
    changed = [*records[:at], new_hash, *records[at + 1 :]]
    assert verify(changed)
    # Whoever links the store anew as well is caught by the next record of the same process.
    later = [item for item in records[at + 1 :] if read_record(item.record).chain == document["chain"]]
    assert bool([fault for fault in verify(linked_anew(changed)) if not fault.is_loss]) == bool(later)


@given(stores(), st.data())
def test_dropped_records_show_unless_they_were_the_last(records: list[StoredRecord], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    left = [*records[:at], *records[at + 1 :]]
    assert bool(verify(left)) == (at < len(records) - 1)
    chain = read_record(records[at].record).chain
    later = [item for item in records[at + 1 :] if read_record(item.record).chain == chain]
    assert bool(verify(linked_anew(left))) == bool(later)


@given(stores(), st.data())
def test_records_that_change_places_show(records: list[StoredRecord], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 2))
    moved = [*records[:at], records[at + 1], records[at], *records[at + 2 :]]
    assert verify([replace(item, position=number) for number, item in enumerate(moved, 1)])


@given(stores(), contents, st.data())
def test_a_record_that_is_put_in_shows(
    records: list[StoredRecord], content: dict[str, Any], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    forged = AuditChain("component/0", sequence=0, last=FIRST).seal(content)
    item = StoredRecord(at + 1, CALLER, forged, link_of(records[at - 1].link if at else FIRST, CALLER, forged.digest))
    shifted = [replace(later, position=later.position + 1) for later in records[at:]]
    assert verify([*records[:at], item, *shifted])


def test_a_record_of_another_caller_shows() -> None:
    chain = AuditChain("component/0")
    records = stored([(CALLER, chain.seal({"at_s": 1.0})), (CALLER, chain.seal({"at_s": 2.0}))])
    assert verify([records[0], replace(records[1], caller="somebody")])


def test_records_that_never_arrived_are_lost_and_no_fault_of_the_store() -> None:
    chain = AuditChain("component/0")
    sealed = [chain.seal({"at_s": float(number)}) for number in range(6)]
    faults = verify(stored([(CALLER, sealed[at]) for at in (0, 1, 4, 5)]))
    assert [(fault.position, fault.is_loss) for fault in faults] == [(3, True)]
    assert "records 3 to 4" in faults[0].text


def test_a_store_that_has_given_up_its_oldest_is_verified_from_where_it_begins() -> None:
    chain = AuditChain("component/0")
    records = stored([(CALLER, chain.seal({"at_s": float(number)})) for number in range(6)])
    start = Head(records[2].position, records[2].link)
    assert verify(records[3:], start) == []
    assert verify(records[4:], start)


def test_large_values_are_replaced_by_their_hash() -> None:
    record = AuditChain("c").seal({"at_s": 1.0, "text": "short", "after": {"data": "x" * 100_000}})
    assert len(record.text) < LARGEST_RECORD_BYTES
    entry = read_record(record)
    assert entry.text == "short"
    assert set(entry.after) == {"bytes", "sha256"}


deep: Any = "end"
for _ in range(100):
    deep = {"in": [deep]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**30, "\ud800", deep, {1: 2}, {"a": (1, {2: None})}])
def test_whatever_is_recorded_can_be_read(value: Any) -> None:
    assert read_record(AuditChain("c").seal({"at_s": 1.0, "text": "said", "after": value})).text == "said"


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"chain":"a","sequence":0,"previous":"","at_s":1}', '{"chain":"a"}', "[" * 100_000],
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(AuditError):
        read_record(SealedRecord(text, digest_of(text)))


@pytest.mark.parametrize("text", ["", "1", f"x:{FIRST}", f"-1:{FIRST}", "1:00", f"{'9' * 19}:{FIRST}", f"٣:{FIRST}"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(AuditError, match="no head"):
        Head.parse(text)


def test_heads_survive_being_written_down() -> None:
    head = Head(12, digest_of("x"))
    assert Head.parse(str(head)) == head


def test_what_a_patch_touches_has_its_shape() -> None:
    document = {"metadata": {"annotations": {"a": "1", "b": "2"}}, "spec": {"suspend": False, "other": 1}}
    changes = {"metadata": {"annotations": {"a": None, "c": "3"}}, "spec": {"suspend": True}}
    assert touched(document, changes) == {
        "metadata": {"annotations": {"a": "1", "c": None}},
        "spec": {"suspend": False},
    }
