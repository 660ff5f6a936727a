"""How wide and in which colour a drawing shows its parts: one answer for pages, HTML, SVG and PNG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.dashboard.pages.topology.picture import DrawnDevice, Picture, Wire

PAPER, INK, QUIET = "#fffefa", "#1b2831", "#55636d"
COLOURS: Mapping[str, str] = {
    "actual": INK,
    "median": "#0072b2",
    "held": "#6b7780",
    "lend": "#00765a",
    "limit": "#b24700",
    "keep": "#7fa9c4",
    "band": "#0072b2",
    "paper": PAPER,
    "on-lend": "#ffffff",
    "on-keep": "#0c1419",
}
"""By role, in the light theme; the pages repaint by role. A drawing that leaves the pages brings its own paper."""
BOX_OPACITY = 0.09
_THINNEST = 1.2
_CROWDED = ((16, 9.0), (64, 5.0), (10_000_000, 2.5))


@dataclass(frozen=True)
class Bundle:
    """Wires that are drawn alike: one entry of the legend."""

    name: str
    role: str
    width: float
    dash: str
    wires: tuple[Wire, ...]


def bundles(picture: Picture) -> tuple[Bundle, ...]:
    """The slowest first, so that fast links lie on top; what is chosen and what is degraded above all."""
    groups: dict[tuple[str, float, bool, bool], list[Wire]] = {}
    for wire in picture.wires:
        groups.setdefault((wire.kind, _rounded(wire.gbps), wire.chosen, wire.degraded), []).append(wire)
    most = max((wire.gbps for wire in picture.wires), default=0.0)
    widest = next(width for many, width in _CROWDED if sum(wire.direct for wire in picture.wires) <= many)
    result = [_bundle(wires, widest, most) for wires in groups.values()]
    return tuple(
        sorted(
            result,
            key=lambda bundle: (bundle.dash != "solid", bundle.role == "lend", bundle.wires[0].direct, bundle.width),
        )
    )


def _rounded(gbps: float) -> float:
    return float(f"{gbps:.3g}")


def _bundle(wires: list[Wire], widest: float, most: float) -> Bundle:
    wire = wires[0]
    role = "limit" if wire.degraded else "lend" if wire.chosen else "median" if wire.direct else "held"
    width = _THINNEST + (widest - _THINNEST) * (wire.gbps / most if most else 0.0)
    speed = f" {_rounded(wire.gbps):g} GB/s" if wire.gbps else ""
    state = ", degraded" if wire.degraded else ", chosen" if wire.chosen else ""
    # What leads to a card is PCIe of a width that no tool tells.
    name = "" if wire.kind == "PCIe" and not wire.gbps else f"{wire.kind}{speed}{state}"
    return Bundle(name, role, round(width, 2), "dash" if wire.degraded else "solid", tuple(wires))


@dataclass(frozen=True)
class DeviceStyle:
    """Of a device: ``role`` fills it and ``text_role`` writes on it; ``size`` in pixels."""

    name: str
    role: str
    text_role: str
    symbol: str
    size: float


def device_style(device: DrawnDevice, gpus: int) -> DeviceStyle:
    size = max(9.0, min(30.0, 520.0 / max(gpus, 1)))
    if device.kind == "card":
        return DeviceStyle(
            "card, degraded" if device.degraded else "network card",
            "limit" if device.degraded else "keep",
            "on-keep",
            "diamond",
            11.0,
        )
    if device.kind == "switch":
        return DeviceStyle("", "held", "paper", "hexagon", 78.0)
    if device.degraded:
        return DeviceStyle("GPU, degraded", "limit", "paper", "octagon", size)
    if device.chosen:
        return DeviceStyle("GPU, chosen", "lend", "on-lend", "square", size)
    return DeviceStyle("GPU", "actual", "paper", "circle", size)


def by_style(devices: Sequence[DrawnDevice]) -> dict[DeviceStyle, list[DrawnDevice]]:
    """Marks that look alike."""
    gpus = sum(item.kind == "gpu" for item in devices)
    result: dict[DeviceStyle, list[DrawnDevice]] = {}
    for item in devices:
        result.setdefault(device_style(item, gpus), []).append(item)
    return result
