"""An index equals the objects that its source shows, whatever changes."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Change, ChangeKind

keys = st.tuples(st.just("n"), st.sampled_from("abc"))
values = st.none() | st.frozensets(st.sampled_from("xyz"))


@given(st.lists(st.tuples(keys, values)))
def test_what_is_looked_up_is_what_there_is(changes: list[tuple[tuple[str, str], frozenset[str] | None]]) -> None:
    index: Index[str, frozenset[str]] = Index(lambda value: value)
    objects: dict[tuple[str, str], frozenset[str]] = {}
    for key, new in changes:
        old = objects.pop(key, None)
        if old is None and new is None:
            continue
        kind = ChangeKind.DELETED if new is None else ChangeKind.ADDED if old is None else ChangeKind.UPDATED
        index.follow(Change(kind, key, old, new))
        if new is not None:
            objects[key] = new
        for name in "xyz":
            assert sorted(map(sorted, index.of(name))) == sorted(
                sorted(value) for value in objects.values() if name in value
            )
        assert set(index.names) == {name for value in objects.values() for name in value}
