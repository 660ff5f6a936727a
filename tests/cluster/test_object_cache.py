"""The object cache against a model of an API server whose watches lag behind, for two kinds that lag independently."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from example_budget import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kopt.cluster.client.api import Gone, Kube, Page, Unreachable, WatchEvent
from kopt.cluster.client.resources import CONFIG_MAPS, SECRETS, Key, Object, Resource
from kopt.cluster.runtime.informer import Change, ChangeKind, Informer, InformerSettings
from kopt.cluster.runtime.object_cache import ObjectCache

QUICK = InformerSettings(first_pause_s=0.0001, longest_pause_s=0.0002)
KINDS = (CONFIG_MAPS, SECRETS)
Shown = tuple[str, int]
"""uid and version."""


@dataclass
class Store:
    """One kind on the server, and how much of its history watches have been sent."""

    objects: dict[str, Object] = field(default_factory=dict)
    history: list[tuple[int, WatchEvent]] = field(default_factory=list)
    sent: int = 0
    bookmark: int = 0
    forgotten: int = 0
    cuts: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    def cut(self) -> None:
        self.cuts += 1
        self.wake()


class ModelServer(Kube):
    """Versions count over all kinds. What is told to a watch is what has been ``sent``; lists are always current."""

    def __init__(self) -> None:
        self.version = self.uids = 0
        self.stores = {kind: Store() for kind in KINDS}

    def create(self, kind: Resource, name: str, *, kept: bool = True) -> Object:
        self.uids += 1
        return self._write(kind, "ADDED", name, {"uid": str(self.uids), "labels": {"kept": str(kept)}})

    def change(self, kind: Resource, name: str, **metadata: Any) -> Object:
        return self._write(kind, "MODIFIED", name, self.stores[kind].objects[name]["metadata"] | metadata)

    def remove(self, kind: Resource, name: str) -> Object:
        document = self._write(kind, "DELETED", name, self.stores[kind].objects[name]["metadata"])
        del self.stores[kind].objects[name]
        return document

    def _write(self, kind: Resource, event: str, name: str, metadata: Object) -> Object:
        self.version += 1
        document = {"metadata": metadata | {"name": name, "namespace": "n", "resourceVersion": str(self.version)}}
        store = self.stores[kind]
        store.objects[name] = document
        store.history.append((self.version, WatchEvent(event, document)))
        return document

    async def pages(self, resource: Resource, namespace: str = "", **_: Any) -> AsyncGenerator[Page]:
        store = self.stores[resource]
        store.sent = store.bookmark = self.version
        yield Page([*store.objects.values()], str(self.version), "")

    async def watch(
        self, resource: Resource, namespace: str = "", *, resource_version: str, **_: Any
    ) -> AsyncGenerator[WatchEvent]:
        store = self.stores[resource]
        position, cuts = int(resource_version), store.cuts
        if position < store.forgotten:
            raise Gone(410, "Expired", "too old")
        while True:
            due = [(at, event) for at, event in store.history if position < at <= store.sent]
            for at, event in due:
                yield event
                position = at
            if store.bookmark > position:
                yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": str(store.bookmark)}})
                position = store.bookmark
            if store.cuts != cuts:
                raise Unreachable("cut")
            await store.more.wait()


def kept(document: Object) -> Shown | None:
    metadata = document["metadata"]
    return (metadata["uid"], int(metadata["resourceVersion"])) if metadata["labels"]["kept"] == "True" else None


class Observer:
    """One kind as a controller has it. ``floor``: the newest version of each object that was shown or recorded."""

    def __init__(self, server: ModelServer, kind: Resource) -> None:
        self.informer: Informer[Shown] = Informer(server, kind, keep=kept, settings=QUICK)
        self.cache = ObjectCache(self.informer)
        self.floor: dict[Key, int] = defaultdict(int)
        self.gone: set[str] = set()
        """Uids whose deletion the informer has shown, or that were deleted by us."""
        self.mirror: dict[Key, Shown] = {}
        self.wrong: list[Change[Shown]] = []
        self.cache.subscribe(self._follow)
        self.informer.subscribe(self._is_gone)

    def _follow(self, change: Change[Shown]) -> None:
        known = self.mirror.get(change.key)
        kind = ChangeKind.DELETED if change.new is None else ChangeKind.UPDATED if known else ChangeKind.ADDED
        anew = known is not None and change.new is not None and known[0] != change.new[0]
        if change.kind is not kind or change.old != known or anew:
            self.wrong.append(change)
        if change.new is None:
            del self.mirror[change.key]
        else:
            self.mirror[change.key] = change.new

    def _is_gone(self, change: Change[Shown]) -> None:
        mark = self.informer.version_of(change.key)
        if change.old is not None and (mark is None or mark.uid != change.old[0]):
            self.gone.add(change.old[0])
        shown = self.cache.objects.get(change.key)
        if shown is not None and shown[0] in self.gone:
            # Other subscribers of the informer may read the cache.
            self.wrong.append(change)


kinds, names, flags = st.sampled_from(KINDS), st.sampled_from("abc"), st.booleans()


class Machine(RuleBasedStateMachine):
    """Others write, we write, answers and watches arrive late and in any order."""

    @initialize(before=st.sets(names))
    def begin(self, before: set[str]) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = ModelServer()
        for name in sorted(before):
            self.server.create(CONFIG_MAPS, name)
        self.observers = {kind: Observer(self.server, kind) for kind in KINDS}
        self.answers: list[Callable[[], None]] = []
        self.running = [self.loop.create_task(observer.informer.run()) for observer in self.observers.values()]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for kind in KINDS:
            self.send(kind, 1000, bookmark=True)
        for kind, observer in self.observers.items():
            store = self.server.stores[kind]
            truth = {("n", name): kept(document) for name, document in store.objects.items()}
            # What we have deleted is hidden for as long as a finalizer keeps it.
            expected = {key: shown for key, shown in truth.items() if shown and shown[0] not in observer.gone}
            assert dict(observer.cache.objects) == expected
        for task in self.running:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*self.running, return_exceptions=True))
        self.loop.close()

    @rule(kind=kinds, name=names, is_kept=flags)
    def others_write(self, kind: Resource, name: str, is_kept: bool) -> None:
        if name in self.server.stores[kind].objects:
            self.server.change(kind, name, labels={"kept": str(is_kept)})
        else:
            self.server.create(kind, name, kept=is_kept)

    @rule(kind=kinds, name=names)
    def others_delete(self, kind: Resource, name: str) -> None:
        if name in self.server.stores[kind].objects:
            self.server.remove(kind, name)

    @rule(kind=kinds, name=names, is_kept=flags, late=flags)
    def we_write(self, kind: Resource, name: str, is_kept: bool, late: bool) -> None:
        if name in self.server.stores[kind].objects:
            document = self.server.change(kind, name, labels={"kept": str(is_kept)})
        else:
            document = self.server.create(kind, name, kept=is_kept)
        self.answer(lambda: self.written(kind, document), late)

    @rule(kind=kinds, name=names, finalizers=flags, late=flags)
    def we_delete(self, kind: Resource, name: str, finalizers: bool, late: bool) -> None:
        document = self.server.stores[kind].objects.get(name)
        if document is None:
            return
        if finalizers:
            self.server.change(kind, name, deletionTimestamp="now")
        else:
            self.server.remove(kind, name)
        self.answer(lambda: self.deleted(kind, document), late)

    def answer(self, arrives: Callable[[], None], late: bool) -> None:
        if late:
            self.answers.append(arrives)
        else:
            arrives()

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 5))
    def late_answer(self, which: int) -> None:
        self.answers.pop(which % len(self.answers))()

    def written(self, kind: Resource, document: Object) -> None:
        observer, metadata = self.observers[kind], document["metadata"]
        key = ("n", metadata["name"])
        observer.cache.record(document)
        if self.server.stores[kind].objects.get(key[1]) is document and metadata["uid"] not in observer.gone:
            # Nobody has written since: what we wrote is what we see.
            assert observer.cache.objects.get(key) == kept(document)
        observer.floor[key] = max(observer.floor[key], int(metadata["resourceVersion"]))

    def deleted(self, kind: Resource, document: Object) -> None:
        self.observers[kind].cache.record_deletion(document)
        self.observers[kind].gone.add(document["metadata"]["uid"])

    @rule(kind=kinds, count=st.integers(1, 4), bookmark=flags)
    def send(self, kind: Resource, count: int, bookmark: bool) -> None:
        """The next events of one kind arrive."""
        store = self.server.stores[kind]
        versions = [at for at, _ in store.history if at > store.sent][:count]
        store.sent = versions[-1] if versions else store.sent
        if bookmark and not any(at > store.sent for at, _ in store.history):
            store.sent = store.bookmark = self.server.version
        store.wake()
        self.arrive(kind)

    @rule(kind=kinds, compacts=flags)
    def reconnect(self, kind: Resource, compacts: bool) -> None:
        """A watch is cut and resumed, or begins anew with a list that has skipped what happened."""
        store = self.server.stores[kind]
        if compacts:
            store.forgotten = self.server.version + 1
            self.server.version += 1
        store.cut()
        relists = self.observers[kind].informer.relists
        self.arrive(kind, lambda: self.observers[kind].informer.relists > relists or not compacts)

    def arrive(self, kind: Resource, more: Callable[[], bool] = lambda: True) -> None:
        informer, store = self.observers[kind].informer, self.server.stores[kind]
        expected = max([at for at, _ in store.history if at <= store.sent] + [store.bookmark])

        async def caught_up() -> None:
            async with asyncio.timeout(20):
                while not informer.synced.is_set() or int(informer.version) < expected or not more():
                    await asyncio.sleep(0.0002)

        self.loop.run_until_complete(caught_up())

    @invariant()
    def nothing_old_and_nothing_gone_is_shown(self) -> None:
        for kind, observer in getattr(self, "observers", {}).items():
            assert observer.wrong == []
            assert observer.mirror == dict(observer.cache.objects)
            for key, (uid, version) in observer.cache.objects.items():
                assert version >= observer.floor[key]
                assert uid not in observer.gone
                observer.floor[key] = version
            for key, floor in observer.floor.items():
                if floor and key not in observer.cache.objects:
                    # It is hidden because of something that happened since, not because it was forgotten.
                    history = self.server.stores[kind].history
                    since = [event for at, event in history if at >= floor and event[1]["metadata"]["name"] == key[1]]
                    assert any(
                        event[0] == "DELETED"
                        or kept(event[1]) is None
                        or event[1]["metadata"].get("deletionTimestamp")
                        or event[1]["metadata"]["uid"] in observer.gone
                        for event in since
                    )


Machine.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWhateverArrivesWhen = Machine.TestCase


@pytest.fixture
def model() -> ModelServer:
    return ModelServer()


async def test_a_write_that_fails_changes_nothing(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    observer.cache.record(model.create(CONFIG_MAPS, "a"))
    before = dict(observer.cache.objects)

    async def refused() -> Object:
        raise Unreachable("cut")

    with pytest.raises(Unreachable):
        observer.cache.record(await refused())
    assert dict(observer.cache.objects) == before


async def test_of_two_answers_in_the_wrong_order_the_newer_one_counts(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    first, second = model.create(CONFIG_MAPS, "a"), model.change(CONFIG_MAPS, "a")
    observer.cache.record(second)
    observer.cache.record(first)
    assert observer.cache.objects == {("n", "a"): ("1", 2)}


async def test_what_is_deleted_stays_hidden_although_we_write_it_once_more(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    document = model.create(CONFIG_MAPS, "a")
    running = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    model.change(CONFIG_MAPS, "a", deletionTimestamp="now")
    observer.cache.record_deletion(document)
    observer.cache.record(model.change(CONFIG_MAPS, "a", finalizers=[]))
    assert dict(observer.cache.objects) == {}

    model.remove(CONFIG_MAPS, "a")
    observer.cache.record(model.create(CONFIG_MAPS, "a"))
    assert observer.cache.objects == {("n", "a"): ("2", 5)}
    running.cancel()


async def test_what_was_made_and_deleted_between_two_lists_is_gone(model: ModelServer) -> None:
    """No event of the informer is about it."""
    observer = Observer(model, CONFIG_MAPS)
    running = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    observer.cache.record(model.create(CONFIG_MAPS, "a"))
    assert list(observer.cache.objects) == [("n", "a")]

    model.remove(CONFIG_MAPS, "a")
    await listed_anew(observer, model)
    assert dict(observer.cache.objects) == {}
    running.cancel()


async def listed_anew(observer: Observer, model: ModelServer) -> None:
    """The watch cannot be resumed: what happened since is never told as events."""
    store = model.stores[CONFIG_MAPS]
    model.version += 1
    store.forgotten = model.version
    store.cut()
    async with asyncio.timeout(20):
        while observer.informer.version != str(model.version):
            await asyncio.sleep(0.001)


async def test_a_subscriber_to_a_deletion_does_not_see_our_last_write(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    model.create(CONFIG_MAPS, "a")
    running = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    observer.cache.record(model.change(CONFIG_MAPS, "a"))
    model.remove(CONFIG_MAPS, "a")
    await listed_anew(observer, model)
    assert (observer.wrong, dict(observer.cache.objects)) == ([], {})
    running.cancel()


async def test_another_object_under_the_name_is_a_deletion_and_an_addition(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    model.create(CONFIG_MAPS, "a")
    running = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    changes: list[ChangeKind] = []
    old = model.stores[CONFIG_MAPS].objects["a"]
    model.remove(CONFIG_MAPS, "a")
    observer.cache.subscribe(lambda change: changes.append(change.kind))
    observer.cache.record(model.create(CONFIG_MAPS, "a"))
    assert changes == [ChangeKind.ADDED, ChangeKind.DELETED, ChangeKind.ADDED]

    # The answer to the deletion of the first one comes late.
    observer.cache.record_deletion(old)
    assert observer.cache.objects == {("n", "a"): ("2", 3)}
    running.cancel()


async def test_a_subscription_begins_with_what_there_is_and_ends(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    observer.cache.record(model.create(CONFIG_MAPS, "a"))
    changes: list[tuple[ChangeKind, Key]] = []
    end = observer.cache.subscribe(lambda change: changes.append((change.kind, change.key)))
    observer.cache.record(model.change(CONFIG_MAPS, "a"))
    end()
    observer.cache.record(model.create(CONFIG_MAPS, "b"))
    assert changes == [(ChangeKind.ADDED, ("n", "a")), (ChangeKind.UPDATED, ("n", "a"))]


async def test_own_writes_end_with_a_restore_from_a_backup(model: ModelServer) -> None:
    """Versions begin anew there; a write of before would otherwise be shown until they have come as far again."""
    observer = Observer(model, CONFIG_MAPS)
    model.version = 100
    model.create(CONFIG_MAPS, "a")
    running = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    observer.cache.record(model.change(CONFIG_MAPS, "a"))
    observer.cache.record(model.create(CONFIG_MAPS, "b"))
    assert observer.cache.objects == {("n", "a"): ("1", 102), ("n", "b"): ("2", 103)}

    store = model.stores[CONFIG_MAPS]
    store.objects.clear()
    store.history.clear()
    model.version = 49
    model.stores[CONFIG_MAPS].objects["a"] = {
        "metadata": {
            "name": "a",
            "namespace": "n",
            "uid": "1",
            "resourceVersion": "49",
            "labels": {"kept": "True"},
        }
    }
    store.forgotten = 1000
    relists = observer.informer.relists
    store.cut()
    async with asyncio.timeout(20):
        while observer.informer.relists == relists:
            await asyncio.sleep(0.001)
    assert observer.cache.objects == {("n", "a"): ("1", 49)}
    running.cancel()


async def test_an_object_that_cannot_be_read_is_left_out_as_the_informer_would(model: ModelServer) -> None:
    observer = Observer(model, CONFIG_MAPS)
    document = model.create(CONFIG_MAPS, "a")
    del document["metadata"]["labels"]
    observer.cache.record(document)
    assert dict(observer.cache.objects) == {}
