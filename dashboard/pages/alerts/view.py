"""What fires, and what fired as bars over time, in the words of the page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.catalogue import AlertRule, Severity, alert_rules
from kopt.core.alerts.episodes import Episode
from kopt.dashboard.data.alerts import AlertHistory
from kopt.dashboard.formatting import clock, span

WIDTH = 1000
MOST_ROWS = 100
MOST_ACKNOWLEDGED = 5
"""Acknowledgements of one episode: the newest."""
_NARROWEST = 3.0
_LABEL = re.compile(r"\{\{\s*\$labels\.(\w+)\s*\}\}")
_RANK = {severity.value: rank for rank, severity in enumerate(reversed(Severity))}


@dataclass(frozen=True)
class EpisodeLine:
    """An alert from when it fired; ``resolved_s`` is None while it fires. ``acknowledged`` is who said what."""

    identity: str
    alert: str
    severity: str
    about: str
    summary: str
    means: str
    do: str
    fired_s: float
    resolved_s: float | None
    lasted: str
    acknowledged: tuple[Acknowledgement, ...]


@dataclass(frozen=True)
class Bar:
    """In a box that is ``WIDTH`` wide."""

    x: float
    width: float
    tooltip: str


@dataclass(frozen=True)
class Lane:
    """All episodes of a rule over the window."""

    alert: str
    severity: str
    bars: tuple[Bar, ...]
    text: str


@dataclass(frozen=True)
class AlertsPage:
    """``count`` is that of all episodes, of which ``rows`` has the newest."""

    firing: tuple[EpisodeLine, ...]
    unacknowledged: int
    lanes: tuple[Lane, ...]
    rows: tuple[EpisodeLine, ...]
    count: int
    begin_s: float
    end_s: float
    step: str


def alerts_page(
    history: AlertHistory, window_s: int, now_s: float, current: Sequence[Episode] | None = None
) -> AlertsPage:
    """``now_s``: Unix seconds, where the window ends. ``current`` are the episodes that fire now where others know that
    better than ``history``, whose samples may be far apart."""
    rules = {rule.alert: rule for rule in alert_rules()}
    by_identity: dict[str, list[Acknowledgement]] = {}
    for each in history.acknowledgements:
        by_identity.setdefault(each.identity, []).append(each)

    def line_of(episode: Episode) -> EpisodeLine:
        own = by_identity.get(episode.identity, ())
        return _line(episode, own, history.step_s, rules.get(episode.alert), now_s)

    lines = [line_of(each) for each in history.episodes]
    if current is None:
        current = [each for each in history.episodes if each.resolved_s is None]
    firing = sorted(map(line_of, current), key=_urgency)
    by_rule: dict[tuple[int, str], list[EpisodeLine]] = {}
    for line in lines:
        by_rule.setdefault((_RANK.get(line.severity, len(_RANK)), line.alert), []).append(line)
    lanes = [_lane(each, window_s, now_s) for _, each in sorted(by_rule.items())]
    return AlertsPage(
        tuple(firing),
        sum(not line.acknowledged for line in firing),
        tuple(lanes),
        tuple(lines[:MOST_ROWS]),
        len(lines),
        now_s - window_s,
        now_s,
        span(history.step_s),
    )


def _urgency(line: EpisodeLine) -> tuple[int, bool, float]:
    return _RANK.get(line.severity, len(_RANK)), bool(line.acknowledged), line.fired_s


def _line(
    episode: Episode, known: Sequence[Acknowledgement], step_s: int, rule: AlertRule | None, now_s: float
) -> EpisodeLine:
    end_s = now_s if episode.resolved_s is None else episode.resolved_s
    return EpisodeLine(
        episode.identity,
        episode.alert,
        episode.severity,
        episode.about,
        "" if rule is None else _filled(rule.summary, dict(episode.labels)),
        "" if rule is None else rule.means,
        "" if rule is None else rule.do,
        episode.fired_s,
        episode.resolved_s,
        span(max(0.0, end_s - episode.fired_s)),
        tuple(each for each in known if episode.has(each.at_s, step_s))[-MOST_ACKNOWLEDGED:],
    )


def _filled(template: str, labels: Mapping[str, str]) -> str:
    """A summary with its labels, up to the first thing that is none: values are not among what is read."""
    text, more, _ = _LABEL.sub(lambda match: labels.get(match[1], ""), template).partition("{{")
    clause, colon, _ = text.rpartition(":")
    return text if not more else f"{clause}." if colon else ""


def _lane(lines: Sequence[EpisodeLine], window_s: int, now_s: float) -> Lane:
    bars = list[Bar]()
    for line in sorted(lines, key=lambda line: line.fired_s):
        end_s = now_s if line.resolved_s is None else min(line.resolved_s, now_s)
        begin = min(max(0.0, (line.fired_s - (now_s - window_s)) / window_s * WIDTH), WIDTH - _NARROWEST)
        width = max(_NARROWEST, (end_s - (now_s - window_s)) / window_s * WIDTH - begin)
        until = "still fires" if line.resolved_s is None else f"until {clock(line.resolved_s)}"
        tooltip = f"{line.about or line.alert}: from {clock(line.fired_s)}, {until}"
        last = bars[-1] if bars else None
        if last is not None and begin < last.x + last.width:
            # Nobody can point at bars that lie on one another, and there may be thousands.
            whole = max(last.width, begin + width - last.x)
            bars[-1] = Bar(
                last.x, round(whole, 1), f"{last.tooltip.partition('; ')[0]}; and others up to {clock(end_s)}"
            )
        else:
            bars.append(Bar(round(begin, 1), round(width, 1), tooltip))
    fires = sum(line.resolved_s is None for line in lines)
    times = "once" if len(lines) == 1 else f"{len(lines)} times"
    text = f"{lines[0].alert} fired {times}{f', {fires} of them still' if fires else ''}"
    return Lane(lines[0].alert, lines[0].severity, tuple(bars), text)
