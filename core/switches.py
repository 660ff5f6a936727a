"""Which of our features act on the cluster, and on how large a share of what there is: types and rules.

A feature has one switch, a percentage from 0, off, to 100. Which workloads a smaller one includes follows from a hash
of their owner's name, so that every replica of every component gives the same answer, also after a restart, and what
is included at 10 % is included at 20 %.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

MOST_FLIPS = 100
"""Kept of the history, the newest."""
LONGEST_REASON = 500
OFF, ON = 0, 100
_OF_CRON_JOB = re.compile(r"-\d{8}$")
"""What a CronJob adds to the names of its Jobs: the minute."""


@dataclass(frozen=True)
class Feature:
    """Something of ours that acts, with a switch of its own. ``name`` is the switch's."""

    name: str
    controller: str
    """As in the list of controllers."""
    unit: str
    """What the percentage is of."""
    acts: str
    """What it does where it is on."""
    predictor: str = ""
    """The predictor that it rests on, if any: an alarm of its models switches the feature off."""


FEATURES = (
    Feature("queues", "webhook", "workloads", "writes queue labels, and refuses workloads that no rule matches"),
    Feature("schedulers", "webhook", "workloads", "names schedulers in pod templates"),
    Feature("pools", "webhook", "workloads", "limits workloads to the node pools and hardware that they name"),
    Feature("sizing", "webhook", "workloads", "writes recommended sizes and shares of GPUs", "sizing"),
    Feature("fractions", "webhook", "workloads", "writes shares of GPUs that workloads ask for, and refuses others"),
    Feature("devices", "webhook", "workloads", "selects GPU and memory slots of claims for MIG instances"),
    Feature("placement", "extender", "workloads", "chooses nodes and GPUs, and binds pods to them"),
    Feature("profiling", "sizing", "workloads", "holds Jobs for a dry run and changes what they ask for", "sizing"),
    Feature("preemption", "preemption", "workloads", "holds Workloads and selects the victims of preemptions"),
    Feature("lending", "lending", "pools", "raises quotas of borrowing queues, stops workloads on lent GPUs", "demand"),
    Feature("staging", "staging", "workloads", "holds workloads until their data is there, and downloads it"),
    Feature("pairwise", "pairwise", "benchmarks", "runs Jobs that measure pairs of idle nodes"),
    Feature("declared-queues", "queues", "queues", "writes the engine's queues as KaiwoQueues declare them"),
    Feature("queue-order", "queues", "cohorts", "writes ranks in the order of queues as priorities of Workloads"),
    Feature("gangs", "gangs", "workloads", "holds gangs and evicts pods where gangs wait for each other"),
    Feature("reservations", "reservations", "reservations", "holds GPUs and workloads for reservations", "runtime"),
    Feature("partitions", "partitions", "strategies", "cuts GPUs of idle nodes into MIG instances or AMD partitions"),
    Feature(
        "sharing", "partitions", "nodes", "sets how device plugins share GPUs of nodes where pods disturb each other"
    ),
    Feature("budgets", "meter", "budgets", "stops LocalQueues of budgets that are spent"),
    Feature("health", "health", "nodes", "has placement avoid nodes at fault, and taints them"),
    Feature(
        "rightsizing", "rightsizing", "workloads", "changes CPU and memory of running pods, and watches their steps"
    ),
    Feature("diagnoses", "pages", "workloads", "writes why a workload waits as an Event on it"),
    Feature("autoscaling", "autoscaling", "services", "gives HorizontalPodAutoscalers forecasts", "demand"),
)
"""Every feature that acts on the cluster."""
BY_NAME: Mapping[str, Feature] = {feature.name: feature for feature in FEATURES}


def features_of(controller: str) -> tuple[Feature, ...]:
    return tuple(feature for feature in FEATURES if feature.controller == controller)


class Owner(NamedTuple):
    """What a percentage counts: a workload, or what made it. ``plural`` as kubectl names the kind."""

    plural: str
    namespace: str
    name: str

    @classmethod
    def of(cls, plural: str, namespace: str, name: str) -> "Owner":
        """All Jobs of a CronJob count as one: they differ in the minute at the end of their names."""
        return cls(plural, namespace, _OF_CRON_JOB.sub("", name) if plural == "jobs" else name)


def is_included(percent: int, owner: tuple[str, ...]) -> bool:
    """Whether ``percent`` of all owners include this one. Stable; and included at 10 % is included at 20 %."""
    return percent >= ON or zlib.crc32("/".join(owner).encode(errors="surrogatepass")) % 100 < percent


class AlarmKind:
    """What an alarm is about, as it is written."""

    DRIFT = "Drift"
    ERROR_RATE = "ErrorRate"
    ERROR_BUDGET = "ErrorBudget"


class AlarmUnknown(Exception):
    """It cannot be said now whether there is an alarm."""


@dataclass(frozen=True)
class Alarm:
    """Why a feature should not act now. ``subject`` says which alarm it is: it is equal while the same one lasts."""

    kind: str
    subject: str
    message: str

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.subject}" if self.subject else self.kind


@dataclass(frozen=True)
class Setting:
    """A switch that was set. ``alarm`` names the alarm that set it, else it was a person; ``overrules`` the alarms
    against which a person has switched it on again: they do not switch it off once more."""

    percent: int
    by: str
    at_s: float
    reason: str
    alarm: str = ""
    overrules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flip:
    """One change of a switch, as the history keeps it."""

    feature: str
    before: int
    after: int
    by: str
    at_s: float
    reason: str
    alarm: str = ""


@dataclass(frozen=True)
class Switches:
    """All switches at one time. ``defaults`` are the installation's, ``settings`` what was set since; ``history`` is
    newest first."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    history: tuple[Flip, ...] = ()

    def percent(self, feature: str) -> int:
        """0 is off. A feature about which nothing is said is on, as without any switches."""
        setting = self.settings.get(feature)
        return setting.percent if setting is not None else self.default(feature)

    def default(self, feature: str) -> int:
        return self.defaults.get(feature, ON)

    def includes(self, feature: str, owner: tuple[str, ...]) -> bool:
        return is_included(self.percent(feature), owner)

    def set_by(self, user: str, feature: str, percent: int | None, reason: str, at_s: float) -> "Switches | None":
        """As a person sets it; None for ``percent`` is the installation's default again. None where nothing changes.

        Raises ValueError for a feature that there is not, a percentage out of range, or no reason.
        """
        if feature not in BY_NAME:
            raise ValueError(f"there is no feature {feature!r}; there are {', '.join(BY_NAME)}")
        if percent is not None and not OFF <= percent <= ON:
            raise ValueError(f"a percentage is {OFF} to {ON}, not {percent}")
        if not reason.strip():
            raise ValueError("a change of a switch needs a reason, for whoever finds it later")
        before = self.settings.get(feature)
        if (before.percent if before is not None else None) == percent and (before is None or not before.alarm):
            return None
        after = None
        if percent is not None:
            after = Setting(percent, user, at_s, reason[:LONGEST_REASON], overrules=_overruled(before, percent))
        return self._with(feature, after, Flip(feature, self.percent(feature), -1, user, at_s, reason[:LONGEST_REASON]))

    def fall_back(self, user: str, feature: str, alarm: Alarm, at_s: float) -> "Switches | None":
        """Off, as an alarm wants it; None where it is off already, or where a person has overruled this alarm.

        Nothing but a person switches it on again, so that it cannot swing; and of two replicas that see the alarm the
        second finds it off.
        """
        before = self.settings.get(feature)
        if self.percent(feature) == OFF or (before is not None and alarm.name in before.overrules):
            return None
        reason = alarm.message[:LONGEST_REASON]
        overrules = before.overrules if before is not None else ()
        after = Setting(OFF, user, at_s, reason, alarm.name, overrules)
        return self._with(feature, after, Flip(feature, self.percent(feature), OFF, user, at_s, reason, alarm.name))

    def _with(self, feature: str, setting: Setting | None, flip: Flip) -> "Switches":
        settings = {name: value for name, value in self.settings.items() if name != feature}
        if setting is not None:
            settings[feature] = setting
        after = replace(self, settings=settings)
        flip = replace(flip, after=after.percent(feature))
        return replace(after, history=(flip, *self.history)[:MOST_FLIPS])


def _overruled(before: Setting | None, percent: int) -> tuple[str, ...]:
    """Who switches on what an alarm has switched off knows of the alarm."""
    if before is None or percent == OFF:
        return ()
    names = (*before.overrules, *([before.alarm] if before.alarm else []))
    return tuple(dict.fromkeys(names))[-8:]
