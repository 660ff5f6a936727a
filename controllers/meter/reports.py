"""Answers questions about costs from the meter's database: rows are summed there, prices come in afterwards."""

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kopt.controllers.meter.queue_use import LocalQueue, queue_use
from kopt.controllers.meter.store import SPAN, CostStore, Window, labels_of, offer_of
from kopt.core.cost.metering import Attributes, Idle, MilliGpuMs, Milliseconds, Segment, idle_of
from kopt.core.cost.prices import PriceBook
from kopt.policies.cost.attribution import (
    TEAM_LABELS,
    UNATTRIBUTED,
    By,
    Grouping,
    Part,
    Unused,
    label_of,
    unused_by_row,
)
from kopt.policies.cost.invoice import Line, Usage, invoice, total_micro
from kopt.policies.cost.report import (
    Charge,
    CostEvent,
    CostQuestion,
    CostReport,
    NodeHours,
    Sums,
    format_offer,
)

_VALUES = {
    By.NAMESPACE: "namespace",
    By.QUEUE: "CASE WHEN queue = '' THEN '' ELSE namespace || '/' || queue END",
    By.TEAM: "labels",
    By.WORKLOAD: "namespace || '/' || workload",
    By.POD: "namespace || '/' || pod",
    By.NODE: "node_uid",
    By.MODEL: "''",
}
Pod = tuple[str, str]
"""Namespace and name."""
_IDLE = {kind.subject: f"(idle: {kind.value})" for kind in Idle}


class CostReports:
    """Methods block, and raise DatabaseError."""

    def __init__(self, store: CostStore, book: PriceBook) -> None:
        self.store, self.book = store, book

    def namespaces(self) -> frozenset[str]:
        """Of all pods that are recorded."""
        return frozenset(str(name) for (name,) in self.store.database.query("SELECT DISTINCT namespace FROM cost_pods"))

    def report(self, question: CostQuestion, activity: Mapping[Pod, float] | None = None) -> CostReport:
        """The page of rows that the question names, and sums of all of them. With ``activity``, the share of time in
        which kernels ran by namespace and name of a pod, also what pods held and did not use."""
        window = self.store.window(question.start_ms, question.end_ms)
        charges = self._charges(question, window)
        sums = Sums(charges, question.by, question.label)
        page, rest, count = sums.page(question.offset, question.limit)
        nodes = None
        if question.namespaces is None:
            lines = invoice(self.store.capacities(window, self.book))
            nodes = NodeHours(sum(line.usage.used for line in lines), total_micro(lines))
        return CostReport(
            question.by,
            question.label,
            window.start_ms,
            window.end_ms,
            self.store.rule(),
            page,
            rest,
            count,
            sums.used,
            sums.micro,
            nodes,
            _unpriced(charges),
            None if question.namespaces is None else tuple(sorted(question.namespaces)),
            None if activity is None else self._unused(question, window, activity),
        )

    def _unused(
        self, question: CostQuestion, window: Window, activity: Mapping[Pod, float]
    ) -> Mapping[tuple[str, str], Unused]:
        grouping, lines = self._lines(question, window)
        active = {
            uid: activity[pod.namespace, pod.pod]
            for uid, pod in grouping.attributes.items()
            if (pod.namespace, pod.pod) in activity
        }
        return unused_by_row(lines, grouping, active)

    def _lines(self, question: CostQuestion, window: Window) -> tuple[Grouping, list[Line]]:
        """Of the pods that may be seen, and idleness where everything may."""
        visible = question.namespaces
        attributes = {
            uid: pod for uid, pod in self.store.attributes().items() if visible is None or pod.namespace in visible
        }
        usages = self.store.usages(window, self.book)
        lines = invoice(usage for usage in usages if visible is None or usage.subject in attributes)
        return Grouping(attributes, self.store.nodes(), question.by, question.label), lines

    def queue_use(
        self, start_ms: Milliseconds, step_ms: Milliseconds, steps: int
    ) -> Mapping[LocalQueue, tuple[float | None, ...]]:
        """By LocalQueue, mean milli-GPU of each step; None where nothing was recorded."""
        return queue_use(self.store, start_ms, step_ms, steps)

    def events(self, question: CostQuestion, row: str) -> list[CostEvent]:
        """Behind a row, in the order of time; they sum to it. Empty where there is no such row."""
        window = self.store.window(question.start_ms, question.end_ms)
        grouping, lines = self._lines(question, window)
        wanted = {(line.usage.subject, line.usage.node_uid) for line in lines if grouping.name(line) == row}
        segments = self.store.segments(window, sorted({subject for subject, _ in wanted}))
        spans = [
            (segment, *span)
            for segment in segments
            if (segment.subject, segment.node_uid) in wanted
            for span in self._spans(segment, window)
        ]
        priced = invoice(
            Usage(
                segment.subject,
                segment.node_uid,
                segment.offer,
                self.book.of(segment.offer, start_ms),
                segment.milli * (end_ms - start_ms),
            )
            for segment, start_ms, end_ms in spans
        )
        return [
            CostEvent(
                _who(segment.subject, grouping.attributes.get(segment.subject)),
                grouping.nodes.get(segment.node_uid, segment.node_uid),
                start_ms,
                end_ms,
                segment.milli,
                line.usage.used,
                line.usage.price,
                line.micro,
                *_identity(segment.subject, grouping.attributes.get(segment.subject)),
            )
            for (segment, start_ms, end_ms), line in zip(spans, priced, strict=True)
        ]

    def _spans(self, segment: Segment, window: Window) -> Iterator[tuple[Milliseconds, Milliseconds]]:
        start_ms = max(segment.start_ms, window.start_ms)
        end_ms = min(window.end_ms if segment.end_ms is None else segment.end_ms, window.end_ms)
        return itertools.pairwise(self.book.dates(start_ms, end_ms))

    def _charges(self, question: CostQuestion, window: Window) -> list[Charge]:
        """Summed by name, node and offer, for each interval of the price book."""
        by = None if question.label else question.by
        sql, of_namespaces = _statement(by, question.namespaces)
        nodes = self.store.nodes() if by is By.NODE else {}
        named = functools.cache(lambda value, written: _named(by, question.label, value, written, nodes))
        is_whole = by in (By.POD, By.WORKLOAD)
        result: list[Charge] = []
        for start_ms, end_ms in itertools.pairwise(self.book.dates(window.start_ms, window.end_ms)):
            bounds = (end_ms, end_ms, start_ms, start_ms, start_ms, end_ms)
            price_of = functools.cache(lambda written, at_ms=start_ms: self.book.of(offer_of(written), at_ms))
            for idle, key, written, value, used, pods, first, last in self.store.database.query(
                sql, (*bounds, *of_namespaces)
            ):
                name = _IDLE[idle] if idle else (value if is_whole and value else named(value, written))
                steps = -1 if first is None else first, -1 if last is None else last
                part = Part.IDLE if idle else Part.PODS
                result.append(Charge(name, part, key, offer_of(written), price_of(written), int(used), pods, *steps))
        return result


def _statement(by: By | None, namespaces: Collection[str] | None) -> tuple[str, Sequence[str]]:
    """Rows of kind of idleness, key, offer, what the name is made of, usage, pods and steps; and the values of its last
    marks. ``by`` is None for a label."""
    node, key = (", node_uid", "node_uid") if by is By.NODE else ("", "''")
    value = "labels" if by is None else _VALUES[by]
    steps = "MIN(CASE WHEN first_step < 0 THEN NULL ELSE first_step END), MAX(last_step)"
    columns, group = f"SUM(used), COUNT(uid), {steps}", "GROUP BY 1, 2, 3, 4"
    if by in (By.POD, By.WORKLOAD):
        # Nearly as many rows as pods: to sort them in the database takes longer than to add them up here.
        key, columns, group = "subject", "used, CASE WHEN uid IS NULL THEN 0 ELSE 1 END, first_step, last_step", ""
    join, of_namespaces = "LEFT JOIN cost_pods ON uid = subject", tuple(sorted(namespaces or ()))
    if namespaces is not None:
        placeholders = ", ".join("?" for _ in of_namespaces) or "NULL"
        join = f"JOIN cost_pods ON uid = subject AND namespace IN ({placeholders})"
    inner = (
        f"SELECT subject{node}, offer, SUM(milli * {SPAN}) AS used FROM cost_segments "
        f"WHERE end_ms > ? AND start_ms < ? GROUP BY subject{node}, offer"
    )
    idle = "CASE WHEN subject LIKE 'idle:%' THEN subject ELSE '' END"
    return f"SELECT {idle}, {key}, offer, {value}, {columns} FROM ({inner}) AS summed {join} {group}", of_namespaces


def _named(by: By | None, label: str, value: str | None, written: str, nodes: Mapping[str, str]) -> str:
    """The row's name, as ``attribution.Grouping`` gives it."""
    if by is By.NODE:
        return nodes.get(value or "", "") or UNATTRIBUTED
    if by is By.MODEL:
        return offer_of(written).model or UNATTRIBUTED
    if by in (None, By.TEAM):
        return label_of(labels_of(value or "{}"), (label,) if by is None else TEAM_LABELS) or UNATTRIBUTED
    return value or UNATTRIBUTED


def _unpriced(charges: Iterable[Charge]) -> Mapping[str, MilliGpuMs]:
    result: dict[str, MilliGpuMs] = {}
    for charge in charges:
        if charge.price is None:
            name = format_offer(charge.offer)
            result[name] = result.get(name, 0) + charge.used
    return dict(sorted(result.items()))


def _identity(subject: str, pod: Attributes | None) -> tuple[str, str]:
    """The UIDs of a pod and of what made it."""
    return (subject, pod.run) if pod is not None else ("", "")


def _who(subject: str, pod: Attributes | None) -> str:
    idle = idle_of(subject)
    if idle is not None:
        return idle.value
    return f"{pod.namespace}/{pod.pod}" if pod is not None else subject
