"""The ``FeatureRollout`` named ``default``, the switches of the cluster, as core types.

``spec.defaults`` is the installation's, ``spec.settings`` what people and alarms have set since, ``status.history`` the
changes. They are written together, with the resource version that was read: there is no flip without its record.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kopt.cluster.client.resources import FEATURE_ROLLOUTS, Object
from kopt.cluster.objects.fields import at, count, items, mapping, text, texts
from kopt.core.switches import MOST_FLIPS, OFF, ON, Flip, Setting, Switches
from kopt.core.times import seconds, stamp

ROLLOUT_NAME = "default"


def switches_of(document: Object) -> Switches:
    """What the object says. Never raises: the schema lets nothing wrong through, and a switch that cannot be read all
    the same counts as off."""
    return Switches(
        {name: _percent(value) for name, value in mapping(document, "spec", "defaults").items()},
        {name: _setting(value) for name, value in mapping(document, "spec", "settings").items()},
        tuple(list(_history(document))[:MOST_FLIPS]),
    )


def changes_of(before: Switches, after: Switches) -> Object:
    """The merge patch from one state to the next."""
    settings: dict[str, Any] = {name: _setting_document(item) for name, item in after.settings.items()}
    # A merge patch keeps what it does not name, inside of a setting as well.
    removed = {name: None for name in before.settings if name not in after.settings}
    return {
        "spec": {"settings": settings | removed},
        "status": {"history": [_flip_document(flip) for flip in after.history]},
    }


def rollout_document(switches: Switches) -> Object:
    """A new object."""
    return {
        "apiVersion": FEATURE_ROLLOUTS.api_version,
        "kind": FEATURE_ROLLOUTS.kind,
        "metadata": {"name": ROLLOUT_NAME},
    } | changes_of(Switches(), switches)


def _percent(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and OFF <= value <= ON else OFF


def _setting(value: Any) -> Setting:
    return Setting(
        _percent(at(value, "percent")),
        text(value, "by"),
        _time(text(value, "at")),
        text(value, "reason"),
        text(value, "alarm"),
        texts(value, "overrules"),
    )


def _history(document: Object) -> Iterator[Flip]:
    for _, item in items(document, "status", "history"):
        yield Flip(
            text(item, "feature"),
            count(item, "from", default=ON),
            count(item, "to", default=OFF),
            text(item, "by"),
            _time(text(item, "at")),
            text(item, "reason"),
            text(item, "alarm"),
        )


def _setting_document(setting: Setting) -> Mapping[str, Any]:
    return {
        "percent": setting.percent,
        "by": setting.by,
        "at": stamp(setting.at_s),
        "reason": setting.reason,
        "alarm": setting.alarm or None,
        "overrules": list(setting.overrules) or None,
    }


def _flip_document(flip: Flip) -> Mapping[str, Any]:
    document = {
        "feature": flip.feature,
        "from": flip.before,
        "to": flip.after,
        "by": flip.by,
        "at": stamp(flip.at_s),
        "reason": flip.reason,
    }
    return document | ({"alarm": flip.alarm} if flip.alarm else {})


def _time(written: str) -> float:
    try:
        return seconds(written)
    except ValueError:
        return 0.0
