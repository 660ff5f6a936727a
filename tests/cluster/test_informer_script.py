"""The informer step by step, against a server whose answers are written down: what it asks, delivers and remembers."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from kopt.cluster.client.api import ApiError, Forbidden, Gone, Kube, NotFound, Page, Unreachable, WatchEvent
from kopt.cluster.client.resources import CONFIG_MAPS, Object, Resource
from kopt.cluster.runtime import informer as module
from kopt.cluster.runtime.informer import Change, ChangeKind, Informer, InformerSettings, identity, wait_synced
from kopt.cluster.runtime.isolation import INVALID_OBJECT, SUBSCRIBER_ERROR, Subject

GONE = Gone(410, "Expired", "too old")
BUSY = ApiError(429, "TooManyRequests", "later")
CUT = Unreachable("cut")
ABSENT = NotFound(404, "NotFound", "no such kind")
Step = Page | ApiError | WatchEvent | Callable[[], None]


def thing(name: str, version: str | None = "1", uid: str | None = "u", **more: object) -> Object:
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": version}
    return {"metadata": {key: value for key, value in metadata.items() if value is not None}, **more}


def page(version: str, *objects: Object, more: str = "") -> Page:
    return Page(list(objects), version, more)


def event(kind: str, document: Object) -> WatchEvent:
    return WatchEvent(kind, document)


class Script(Kube):
    """Answers lists and watches in order; once there are no more answers it waits."""

    def __init__(self, lists: Sequence[Sequence[Step]], watches: Sequence[Sequence[Step]] = ()) -> None:
        self.lists, self.watches = list(lists), list(watches)
        self.listed: list[dict[str, Any]] = []
        self.watched: list[dict[str, Any]] = []
        self.done, self.now_s = asyncio.Event(), 0.0

    async def _answers(self, rest: list[Sequence[Step]]) -> AsyncGenerator[Any]:
        if not rest:
            self.done.set()
            await asyncio.Event().wait()
        for step in rest.pop(0):
            if isinstance(step, ApiError):
                raise step
            if callable(step):
                step()
            else:
                yield step

    async def pages(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncGenerator[Page]:
        self.listed.append({"resource": resource, "namespace": namespace, **options})
        async for answer in self._answers(self.lists):
            yield answer

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncGenerator[WatchEvent]:
        self.watched.append({"resource": resource, "namespace": namespace, **options})
        async for answer in self._answers(self.watches):
            yield answer

    def later(self, seconds: float) -> Callable[[], None]:
        def pass_time() -> None:
            self.now_s += seconds

        return pass_time

    def opened(self) -> None:
        self.watched[-1]["opened"]()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the informer sleeps between attempts, which takes no time here."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return slept


SETTINGS = InformerSettings(page=7, watch_s=11.0, read_timeout_s=13.0, first_pause_s=1.0, longest_pause_s=4.0)


def watching(script: Script, **options: Any) -> "Informer[Any]":
    return Informer(script, CONFIG_MAPS, settings=SETTINGS, clock=lambda: script.now_s, **options)


async def played(informer: "Informer[Any]", script: Script) -> None:
    running = asyncio.create_task(informer.run())
    async with asyncio.timeout(10):
        await script.done.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def recorded(informer: "Informer[Any]") -> list[tuple[str, str, Any, Any]]:
    changes: list[tuple[str, str, Any, Any]] = []
    informer.subscribe(lambda change: changes.append((change.kind.value, change.key[1], change.old, change.new)))
    return changes


def version_of(document: Object) -> str:
    return str(document["metadata"].get("resourceVersion"))


async def test_the_server_is_asked_for_what_the_informer_is_about(pauses: list[float]) -> None:
    script = Script([[page("5")]])
    informer = watching(script, namespace="n", label_selector="a=b", field_selector="c=d")
    await played(informer, script)
    about = {"resource": CONFIG_MAPS, "namespace": "n", "label_selector": "a=b", "field_selector": "c=d"}
    assert script.listed == [{**about, "page": 7}]
    (watch,) = script.watched
    assert watch.pop("opened") == informer._well
    assert watch == {**about, "resource_version": "5", "timeout_s": 11.0, "read_timeout_s": 13.0}


async def test_without_a_choice_everything_in_all_namespaces_is_kept_whole(pauses: list[float]) -> None:
    script = Script([[page("5", thing("a"))]])
    informer: Informer[Object] = Informer(script, CONFIG_MAPS)
    await played(informer, script)
    about = {"resource": CONFIG_MAPS, "namespace": "", "label_selector": "", "field_selector": ""}
    assert script.listed == [{**about, "page": InformerSettings().page}]
    assert dict(informer.objects) == {("n", "a"): thing("a")}
    assert identity(informer) is informer
    assert informer.age_s() < 60


async def test_a_watch_is_resumed_from_the_last_version_that_came(pauses: list[float]) -> None:
    watches = [
        [event("MODIFIED", thing("a", "6")), CUT],
        [event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), BUSY],
        [ApiError(503, "ServiceUnavailable", "later")],
        [event("DELETED", thing("a", "12"))],
    ]
    script = Script([[page("5", thing("a"))]], watches)
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    assert informer.version == ""
    await played(informer, script)
    assert [watch["resource_version"] for watch in script.watched] == ["5", "6", "9", "9", "12"]
    assert (informer.version, informer.relists, len(script.listed)) == ("12", 1, 1)
    assert changes == [("ADDED", "a", None, "1"), ("UPDATED", "a", "1", "6"), ("DELETED", "a", "6", None)]
    assert dict(informer.objects) == {}


@pytest.mark.parametrize("error", [GONE, ApiError(500, "InternalError", "x"), Forbidden(403, "Forbidden", "x")])
async def test_after_an_answer_that_a_watch_cannot_be_resumed_everything_is_listed_again(
    pauses: list[float], error: ApiError
) -> None:
    again = page("8", thing("a"), thing("b", "7"), thing("d", "3"))
    script = Script([[page("5", thing("a"), thing("b"), thing("c"))], [again]], [[error]])
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    await played(informer, script)
    assert [watch["resource_version"] for watch in script.watched] == ["5", "8"]
    assert informer.relists == 2
    assert changes[3:] == [("DELETED", "c", "1", None), ("UPDATED", "b", "1", "7"), ("ADDED", "d", None, "3")]


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {"name": "x"}},
        {"metadata": {"resourceVersion": "9"}},
        {"metadata": None},
        {"kind": "Status"},
    ],
)
async def test_an_event_that_is_no_object_is_an_error_and_everything_is_listed_again(
    pauses: list[float], broken: Object
) -> None:
    script = Script([], [[event("ADDED", broken)]])
    errors: list[str] = []
    script.lists = [[page("5", thing("a"))], [lambda: errors.append(str(informer.error)), page("6")]]
    informer = watching(script)
    await played(informer, script)
    assert [watch["resource_version"] for watch in script.watched] == ["5", "6"]
    (trouble,) = errors
    assert trouble.startswith("Unreachable: configmaps: the server sent something other than an object (")


async def test_an_object_made_anew_under_its_name_is_deleted_and_then_added(pauses: list[float]) -> None:
    script = Script([[page("5", thing("a"))]], [[event("MODIFIED", thing("a", "6", uid="other"))]])
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    await played(informer, script)
    assert changes[1:] == [("DELETED", "a", "1", None), ("ADDED", "a", None, "6")]


async def test_objects_without_a_version_are_taken_from_every_list(pauses: list[float]) -> None:
    """They may have changed; what has a version has not while that is the same."""
    first, second = thing("a", None, data=1), thing("a", None, data=2)
    script = Script([[page("5", first, thing("b"))], [page("6", second, thing("b"))]], [[GONE]])
    informer = watching(script, keep=lambda document: document.get("data", 0))
    changes = recorded(informer)
    await played(informer, script)
    assert changes[2:] == [("UPDATED", "a", 1, 2)]


async def test_an_object_without_a_uid_is_the_same_while_its_version_is(pauses: list[float]) -> None:
    bare = thing("a", "1", uid=None)
    script = Script([[page("5", bare)], [page("6", bare)]], [[event("MODIFIED", thing("a", "6", uid=None)), GONE]])
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    await played(informer, script)
    assert [kind for kind, *_ in changes] == ["ADDED", "UPDATED", "UPDATED"]
    assert Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "a") == Subject.of(CONFIG_MAPS, thing("a", "", ""))


@pytest.mark.parametrize(("again", "anew"), [("4", True), ("5", False), ("50", False), ("", False), ("x4", False)])
async def test_where_versions_went_back_everything_counts_as_changed(
    pauses: list[float], again: str, anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    lists = [[page("5", thing("a"))], [page(again, more="next"), page("6", thing("a"))]]
    script = Script(lists, [[GONE]])
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    await played(informer, script)
    assert changes[1:] == ([("UPDATED", "a", "1", "1")] if anew else [])
    assert ("the server's versions went back" in caplog.text) == anew
    assert informer.version == "6"


async def test_a_list_that_fails_half_way_changes_nothing(pauses: list[float]) -> None:
    broken: list[Step] = [page("6", thing("b", "6"), more="next"), CUT]
    script = Script([[page("5", thing("a"))], broken, [page("7", thing("a"))]], [[GONE]])
    informer = watching(script, keep=version_of)
    changes = recorded(informer)
    await played(informer, script)
    assert changes == [("ADDED", "a", None, "1")]
    assert (informer.version, informer.relists) == ("7", 2)


async def test_what_keep_leaves_out_is_not_there_and_may_come_and_go(pauses: list[float]) -> None:
    events = [event("MODIFIED", thing("a", version)) for version in ("6", "7", "8")]
    script = Script([[page("5", thing("a"))]], [[*events, event("DELETED", thing("a", "9"))]])
    informer = watching(script, keep=lambda document: version_of(document) if version_of(document) in "78" else None)
    changes = recorded(informer)
    await played(informer, script)
    assert changes == [("ADDED", "a", None, "7"), ("UPDATED", "a", "7", "8"), ("DELETED", "a", "8", None)]
    script = Script([[page("5", thing("a"))]], [events[:2]])
    informer = watching(script, keep=lambda document: version_of(document) if version_of(document) == "1" else None)
    changes = recorded(informer)
    await played(informer, script)
    assert changes == [("ADDED", "a", None, "1"), ("DELETED", "a", "1", None)]


async def test_an_object_that_cannot_be_read_is_reported_and_costs_no_other(pauses: list[float]) -> None:
    script = Script([[page("5", thing("a"), thing("b"))]], [[event("MODIFIED", thing("a", "6"))]])
    reports: list[tuple[Subject, str]] = []

    def keep(document: Object) -> str:
        if version_of(document) == "6":
            raise ValueError("odd")
        return version_of(document)

    informer = watching(script, keep=keep)
    informer.isolation.report = lambda subject, reason, _: reports.append((subject, reason))
    changes = recorded(informer)
    await played(informer, script)
    subject = Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "a", "u", "6")
    assert reports == [(subject, INVALID_OBJECT)]
    assert changes[2:] == [("DELETED", "a", "1", None)]
    assert dict(informer.objects) == {("n", "b"): "1"}


async def test_annotations_are_checked_on_what_is_kept_alone(pauses: list[float]) -> None:
    marked = {"metadata": thing("a")["metadata"] | {"annotations": {"x/y": "1"}}}
    other = {"metadata": thing("b")["metadata"] | {"annotations": {"x/y": "2"}}}
    script = Script([[page("5", marked, other)]])
    checked: list[str] = []
    informer = watching(script, keep=lambda document: document if document is marked else None)
    informer.isolation.checks = {"x/y": lambda document: checked.append(document["metadata"]["name"])}
    await played(informer, script)
    assert checked == ["a"]


async def test_what_is_gone_is_forgotten_with_its_uid(pauses: list[float]) -> None:
    script = Script([[page("5", thing("a"))]], [[event("DELETED", thing("a", "6")), event("DELETED", thing("z", "7"))]])
    informer = watching(script, keep=version_of)
    forgotten: list[Subject] = []
    informer.isolation.forget = forgotten.append  # type: ignore[method-assign]
    await played(informer, script)
    assert forgotten == [
        Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "a", "u"),
        Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "z", ""),
    ]


async def test_a_subscriber_that_fails_is_reported_and_the_others_hear_on(pauses: list[float]) -> None:
    script = Script(
        [[page("5", thing("a"))]], [[event("MODIFIED", thing("a", "6")), event("DELETED", thing("a", "7"))]]
    )
    informer = watching(script, keep=version_of)
    reports: list[tuple[Subject, str]] = []
    informer.isolation.report = lambda subject, reason, _: reports.append((subject, reason))

    def fail(change: Change[Any]) -> None:
        raise RuntimeError(change.kind)

    informer.subscribe(fail)
    changes = recorded(informer)
    await played(informer, script)
    assert [kind for kind, *_ in changes] == ["ADDED", "UPDATED", "DELETED"]
    known = [Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "a", "u", version) for version in ("1", "6")]
    gone = Subject(CONFIG_MAPS.api_version, CONFIG_MAPS.kind, "n", "a", "", "")
    assert reports == [(subject, SUBSCRIBER_ERROR) for subject in (*known, gone)]


async def test_who_subscribes_later_is_told_of_all_there_is_and_nothing_after_the_end(pauses: list[float]) -> None:
    script = Script([[page("5", thing("a"), thing("b"))]])
    informer = watching(script, keep=version_of)
    await played(informer, script)
    changes: list[Change[Any]] = []
    stop = informer.subscribe(changes.append)
    assert changes == [Change(ChangeKind.ADDED, ("n", name), None, "1") for name in "ab"]
    stop()
    informer._put(("n", "c"), thing("c"))
    assert len(changes) == 2


async def test_its_age_is_the_time_since_the_server_gave_a_sign_of_life(pauses: list[float]) -> None:
    script = Script([], [])
    later = script.later
    ages: list[float] = []
    informer = watching(script)

    def look() -> None:
        ages.append(informer.age_s())

    script.lists = [[look, page("5", more="next"), later(2), look, page("5"), later(3), look]]
    script.watches = [
        [look, later(5), look, script.opened, look, later(1), event("ADDED", thing("a", "6")), look, later(9), look]
    ]
    await played(informer, script)
    assert ages == [float("inf"), 2, 3, 0, 5, 0, 0, 9]


async def test_trouble_lasts_until_the_server_answers_again(pauses: list[float]) -> None:
    script = Script([], [])
    errors: list[ApiError | None] = []
    informer = watching(script)

    def look() -> None:
        errors.append(informer.error)

    script.lists = [[CUT], [look, page("5")]]
    script.watches = [[look, CUT], [look, script.opened, look, BUSY], [look, event("ADDED", thing("a", "6")), look]]
    await played(informer, script)
    assert errors == [CUT, None, CUT, None, BUSY, None]


async def test_a_connection_that_does_not_come_back_is_logged_once_for_each_message(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = Unreachable("refused")
    failures: list[Sequence[Step]] = [[CUT], [CUT], [CUT], [other], [other], [CUT], [page("5")]]
    script = Script([*failures, [CUT], [CUT]], [[GONE]])
    await played(watching(script), script)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == module.__name__]
    assert lines == [
        ("WARNING", "configmaps cannot be watched: Unreachable: cut"),
        ("WARNING", "configmaps cannot be watched: Unreachable: refused"),
        ("WARNING", "configmaps cannot be watched: Unreachable: cut"),
        ("INFO", "configmaps: the watch cannot be resumed, listing again: 410 Expired: too old"),
        ("WARNING", "configmaps cannot be watched: Unreachable: cut"),
    ]


async def test_pauses_grow_while_nothing_works_and_begin_anew_after_an_answer(pauses: list[float]) -> None:
    script = Script([*[[CUT]] * 5, [page("5")], [CUT], [page("6")]], [[GONE]])
    await played(watching(script), script)
    spans = [1, 2, 4, 4, 4, 1, 2]
    assert len(pauses) == len(spans)
    assert all(span / 2 <= pause <= span for pause, span in zip(pauses, spans, strict=True))


@pytest.mark.parametrize(("lasted_s", "paused"), [(1.0, True), (1.5, False)])
async def test_after_a_watch_that_ended_at_once_there_is_a_pause(
    pauses: list[float], lasted_s: float, paused: bool
) -> None:
    script = Script([[page("5")]])
    script.now_s = 100.0
    script.watches = [[script.later(lasted_s)]]
    await played(watching(script), script)
    assert (len(script.watched), bool(pauses)) == (2, paused)


async def test_a_kind_that_was_never_served_is_one_without_objects(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script = Script([[ABSENT], [ABSENT]])
    informer = watching(script)
    await played(informer, script)
    assert informer.synced.is_set()
    assert (informer.error, informer.age_s()) == (ABSENT, 0)
    assert caplog.text.count("configmaps are not served here") == 1


async def test_objects_stay_for_a_while_when_their_kind_is_not_served_any_more(pauses: list[float]) -> None:
    script = Script([], [])
    held: list[int] = []
    informer = watching(script, keep=version_of)

    def look() -> None:
        held.append(len(informer.objects))

    first, again = page("5", thing("a")), page("6", thing("a"))
    script.lists = [
        [first],
        [ABSENT],
        [script.later(29), ABSENT],
        [look, again],
        [script.later(2), ABSENT],
        [look, script.later(30), ABSENT],
        [look],
    ]
    script.watches = [[script.later(500), GONE], [GONE]]
    changes = recorded(informer)
    running = asyncio.create_task(informer.run())
    async with asyncio.timeout(10):
        while len(held) < 3:
            await asyncio.sleep(0)
    running.cancel()
    assert held == [1, 1, 0]
    assert [kind for kind, *_ in changes] == ["ADDED", "DELETED"]


async def test_waiting_for_the_first_lists_names_those_that_have_not_come(pauses: list[float]) -> None:
    script = Script([[page("5")]])
    ready, silent, broken = watching(script), watching(Script([])), watching(Script([]))
    await played(ready, script)
    await wait_synced([ready], 5.0)
    broken.error = CUT
    with pytest.raises(Unreachable) as error:
        await wait_synced([ready, silent, broken], 0.01)
    sentence = "not listed within 0.01 s: configmaps (no answer yet), configmaps (Unreachable: cut)"
    assert error.value.message == sentence
