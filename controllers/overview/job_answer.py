"""What ``kopt why`` answers about a job, as an object: the same for the command, Python and the pages' interface."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from kopt.controllers.overview.diagnosis.words import sentences, start_sentence
from kopt.controllers.overview.job import Finding, Thing
from kopt.controllers.overview.recorded import line
from kopt.controllers.overview.text import ago
from kopt.controllers.overview.why import Now
from kopt.core.notebook import table, waits_chart
from kopt.core.recorded_actions import RecordedAction
from kopt.core.scheduling.diagnosis import Cause, Change, Diagnosis, StartEstimate


@dataclass(frozen=True)
class Named:
    """An object of a cluster."""

    kind: str
    namespace: str
    name: str
    uid: str = ""

    @classmethod
    def of(cls, thing: Thing) -> "Named":
        return cls(thing.resource.kind, *thing.key, thing.uid)


@dataclass(frozen=True)
class JobAnswer:
    """Why a job does not run, was evicted, moved or resized. ``job`` is what owns ``asked`` in the end; ``diagnosis``
    is None for one that does not wait; ``unread`` are kinds that may not be read; ``at_s`` is when it was read."""

    job: Named
    asked: Named
    now: Now
    summary: str
    findings: tuple[Finding, ...]
    next: str
    diagnosis: Diagnosis | None
    unread: tuple[str, ...]
    at_s: float
    actions: tuple[RecordedAction, ...] = ()
    """What components of ours did to it, the newest first."""

    @property
    def causes(self) -> Sequence[Cause]:
        """What binds, the most important first."""
        return () if self.diagnosis is None else self.diagnosis.causes

    @property
    def changes(self) -> Sequence[Change]:
        """The smallest change of each kind with which it would run."""
        return () if self.diagnosis is None else self.diagnosis.changes

    @property
    def start(self) -> StartEstimate:
        """When it starts, as far as that is known."""
        return StartEstimate() if self.diagnosis is None else self.diagnosis.start

    @property
    def lines(self) -> list[str]:
        """All of it in sentences, as the terminal shows it below the summary."""
        result = [f"• {finding.message}" for finding in self.findings]
        result += sentences(self.diagnosis, self.at_s) if self.diagnosis is not None else []
        result += [f"Recorded: {line(action, self.at_s)}" for action in self.actions]
        return [*result, f"Next: {self.next}"] if self.next else result

    def to_dict(self) -> dict[str, Any]:
        """As ``kopt why -o json`` prints it."""
        return {
            "schema": "kopt/v1",
            "job": _document(self.job) | {"uid": self.job.uid},
            "asked": _document(self.asked),
            "state": self.now.name.lower(),
            "summary": self.summary,
            "findings": [finding_document(finding) for finding in self.findings],
            "next": self.next,
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_dict(),
            "unread": list(self.unread),
            "at_s": self.at_s,
            "actions": [asdict(action) for action in self.actions],
        }

    def _repr_html_(self) -> str:
        """For notebooks; what objects of the cluster say is escaped."""
        parts = [f"<p><b>{escape(self.summary)}</b></p>"]
        if self.findings:
            parts.append(_listed(finding.message for finding in self.findings))
        if self.causes:
            rows = [(cause.code.value, cause.message, _amounts(cause)) for cause in self.causes]
            parts.append(table("What binds", ("code", "what", "wanted / free"), rows))
        if self.changes:
            changes = [(change.kind.value, change.message) for change in self.changes]
            parts.append(table("It would run with any of these", ("change", "what"), changes))
        parts += [f"<p>{escape(text)}</p>" for text in (start_sentence(self.start),) if text]
        parts += [waits_chart(self.start.p50_s, self.start.p90_s)] if self.start.p50_s is not None else []
        if self.actions:
            lines = [(action.component, ago(action.at_s, self.at_s), action.text) for action in self.actions]
            parts.append(table("Recorded", ("component", "when", "what"), lines))
        parts += [f"<p><b>Next:</b> {escape(self.next)}</p>"] if self.next else []
        return "".join(parts)


def finding_document(finding: Finding) -> dict[str, Any]:
    """A finding for programs: ``since_s`` are Unix seconds."""
    return {
        "code": finding.code,
        "message": finding.message,
        "about": finding.about,
        "since_s": finding.since_s,
        "next": finding.next,
        "source": finding.source or "",
    }


def _document(named: Named) -> dict[str, Any]:
    return {"kind": named.kind, "namespace": named.namespace, "name": named.name}


def _amounts(cause: Cause) -> str:
    if cause.wanted is None or cause.free is None:
        return ""
    return f"{cause.wanted:g} / {cause.free:g} {cause.unit}".rstrip()


def _listed(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
