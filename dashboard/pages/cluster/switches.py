"""Which features act, for the page of the cluster."""

from dataclasses import dataclass

from kopt.core.switches import FEATURES, OFF, ON, Feature, Flip, Switches

MOST_FLIPS = 5
"""Of each feature; `kopt features history` has all."""


@dataclass(frozen=True)
class SwitchLine:
    """A feature in words. ``by`` and ``at_s`` are of who set it, empty and None for the installation's default;
    ``before`` are its last changes, newest first."""

    name: str
    acts: str
    state: str
    badge: str
    by: str
    at_s: float | None
    reason: str
    alarm: str
    before: tuple[Flip, ...]


def switch_lines(switches: Switches) -> tuple[SwitchLine, ...]:
    """What alarms have switched off comes first, then what is not on."""
    lines = [_line(feature, switches) for feature in FEATURES]
    return tuple(sorted(lines, key=lambda line: (not line.alarm, line.badge == "ok")))


def state_of(percent: int, unit: str) -> str:
    return {OFF: "off", ON: "on"}.get(percent, f"on {percent} % of {unit}")


def _line(feature: Feature, switches: Switches) -> SwitchLine:
    percent, setting = switches.percent(feature.name), switches.settings.get(feature.name)
    badge = "ok" if percent == ON else "refused" if setting is not None and setting.alarm else "pending"
    return SwitchLine(
        feature.name,
        feature.acts,
        state_of(percent, feature.unit),
        badge,
        "" if setting is None else setting.by,
        None if setting is None else setting.at_s,
        "" if setting is None else setting.reason,
        "" if setting is None else setting.alarm,
        tuple(flip for flip in switches.history if flip.feature == feature.name)[:MOST_FLIPS],
    )
