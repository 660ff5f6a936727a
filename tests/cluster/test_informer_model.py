"""The informer against a model of an API server, in every order of changes, cuts and compactions that can be drawn."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.api import Gone, Kube, Page, Unreachable, WatchEvent
from kopt.cluster.client.resources import CONFIG_MAPS, Object, Resource
from kopt.cluster.runtime.informer import Change, ChangeKind, Informer, InformerSettings

PAGE = 2
QUICK = InformerSettings(page=PAGE, first_pause_s=0.0002, longest_pause_s=0.001)


class ModelServer(Kube):
    """Objects, a log of their changes, and a point before which the log is forgotten."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.log: list[tuple[int, WatchEvent]] = []
        self.version = self.forgotten = self.cuts = self.uids = 0
        self.more = asyncio.Event()

    def change(self, kind: str, name: str) -> None:
        self.version += 1
        if kind == "ADDED":
            self.uids += 1
        uid = self.objects[name]["metadata"]["uid"] if name in self.objects else str(self.uids)
        metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(self.version)}
        document = {"metadata": metadata}
        if kind == "DELETED":
            del self.objects[name]
        else:
            self.objects[name] = document
        self.log.append((self.version, WatchEvent(kind, document)))
        self.wake()

    def put(self, name: str) -> None:
        self.change("MODIFIED" if name in self.objects else "ADDED", name)

    def delete_one(self, name: str) -> None:
        if name in self.objects:
            self.change("DELETED", name)

    def cut(self) -> None:
        self.cuts += 1
        self.wake()

    def compact(self) -> None:
        self.forgotten = self.version
        self.log.clear()
        self.cut()

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int | None = None,
    ) -> AsyncGenerator[Page]:
        items, version, cuts = [*self.objects.values()], self.version, self.cuts
        for start in range(0, max(1, len(items)), PAGE):
            more = "more" if start + PAGE < len(items) else ""
            yield Page(items[start : start + PAGE], str(version), more)
            await asyncio.sleep(0)
            if more and self.forgotten > version:
                raise Gone(410, "Expired", "the continue token is too old")
            if more and self.cuts != cuts:
                raise Unreachable("cut")

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        opened: Callable[[], None] = lambda: None,
        **_: Any,
    ) -> AsyncGenerator[WatchEvent]:
        position, cuts = int(resource_version), self.cuts
        if position < self.forgotten:
            raise Gone(410, "Expired", "too old")
        opened()
        while True:
            for version, event in [entry for entry in self.log if entry[0] > position]:
                if self.cuts != cuts:
                    raise Unreachable("cut")
                yield event
                position = version
                await asyncio.sleep(0)
            if self.cuts != cuts:
                raise Unreachable("cut")
            if not any(version > position for version, _ in self.log):
                await self.more.wait()


names = st.sampled_from("abcdef")
actions = st.sampled_from(["put", "delete", "step", "wait", "cut", "compact"])
operations = st.lists(st.tuples(actions, names), max_size=60)


@given(before=st.sets(names), done=operations)
@settings(max_examples=examples(300))
def test_whatever_happens_the_copy_becomes_the_truth(before: set[str], done: list[tuple[str, str]]) -> None:
    asyncio.run(play(before, done))


async def play(before: set[str], done: list[tuple[str, str]]) -> None:
    server = ModelServer()
    for name in sorted(before):
        server.put(name)
    informer: Informer[tuple[str, str]] = Informer(
        server,
        CONFIG_MAPS,
        settings=QUICK,
        keep=lambda found: (found["metadata"]["uid"], found["metadata"]["resourceVersion"]),
    )
    copy: dict[tuple[str, str], tuple[str, str]] = {}
    newest: dict[tuple[str, str], int] = {}

    wrong: list[Change[tuple[str, str]]] = []

    def take(change: Change[tuple[str, str]]) -> None:
        # Raising would end in the informer's log.
        known = copy.get(change.key)
        expected = ChangeKind.DELETED if change.new is None else ChangeKind.UPDATED if known else ChangeKind.ADDED
        anew = known is not None and change.new is not None and known[0] != change.new[0]
        back = change.new is not None and int(change.new[1]) <= newest.get(change.key, 0)
        if change.kind is not expected or change.old != known or anew or back:
            wrong.append(change)
        if change.new is None:
            del copy[change.key]
        else:
            copy[change.key], newest[change.key] = change.new, int(change.new[1])

    informer.subscribe(take)
    running = asyncio.create_task(informer.run())
    if before:
        await informer.synced.wait()
    play_one = {"put": server.put, "delete": server.delete_one}
    for action, name in done:
        if action in play_one:
            play_one[action](name)
        elif action in ("step", "wait"):
            await asyncio.sleep(0.0005 if action == "wait" else 0)
        else:
            (server.cut if action == "cut" else server.compact)()
    truth = {
        ("n", name): (found["metadata"]["uid"], found["metadata"]["resourceVersion"])
        for name, found in server.objects.items()
    }
    async with asyncio.timeout(60):
        while dict(informer.objects) != truth or not informer.synced.is_set():
            assert not running.done()
            await asyncio.sleep(0.0005)
    assert (copy, wrong) == (truth, [])
    running.cancel()
