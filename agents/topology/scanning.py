"""One look at the node: every collector by itself, then one topology of all that could be read.

What a collector brought last stands in for it while it fails, for a time: a tool that hangs says nothing about links.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kopt.agents.topology.facts import HostDetails, details_of
from kopt.agents.topology.merging import merge, read
from kopt.agents.topology.readings import Collector, CollectorError, CollectorProblem, Reading
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.formats.topology import FormatError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScanResult:
    """What a scan found. ``topology`` is None if no collector reports a GPU. ``stale``: collectors whose part is of
    an earlier scan."""

    topology: NodeTopology | None
    details: HostDetails = HostDetails()
    readings: tuple[Reading, ...] = ()
    warnings: tuple[str, ...] = ()
    stale: frozenset[str] = frozenset()
    fabric: Fabric | None = None


class Scanner:
    """``keep_s``: how long an earlier reading stands in for a collector that fails."""

    def __init__(
        self, collectors: Sequence[Collector], keep_s: float = 900.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collectors, self._keep_s, self._clock = tuple(collectors), keep_s, clock
        self._good: dict[str, tuple[float, Reading]] = {}
        self._parsed: dict[str, tuple[str, NodeTopology | Fabric | None]] = {}
        self._reported: dict[str, str] = {}

    async def scan(self, limit_s: float | None = None) -> ScanResult:
        """Ends within the limits of the slowest collector, or ``limit_s``, whatever happens to any of them."""
        every = await asyncio.gather(*(self._collect(collector, limit_s) for collector in self._collectors))
        readings = [self._parsed_or_failed(reading) for reading in every]
        now_s = self._clock()
        self._good |= {reading.name: (now_s, reading) for reading in readings if reading.problem is None}
        used = [self._with_fallback(reading, now_s) for reading in readings]
        stale = {reading.name for reading, other in zip(readings, used, strict=True) if reading is not other}
        self._log(readings)
        details = details_of(used)
        whole = merge(self._parts(used), details)
        return ScanResult(whole.topology, details, tuple(readings), whole.warnings, frozenset(stale), whole.fabric)

    async def _collect(self, collector: Collector, limit_s: float | None) -> Reading:
        began_s = self._clock()
        text, problem, message = "", None, ""
        try:
            async with asyncio.timeout(limit_s):
                text = await collector.collect()
        except TimeoutError:
            problem, message = CollectorProblem.TIMEOUT, f"no answer within {limit_s or 0:g} s"
        except CollectorError as error:
            problem, message = error.problem, str(error)
        except Exception as error:  # noqa: BLE001 - whatever breaks one collector must not stop the others
            problem, message = CollectorProblem.FAILED, repr(error)
        return Reading(collector.name, text, problem, message, self._clock() - began_s)

    def _parsed_or_failed(self, reading: Reading) -> Reading:
        """The reading, or what is wrong with its text."""
        parsed = self._parsed.get(reading.name)
        if reading.problem is not None or (parsed is not None and parsed[0] == reading.text):
            return reading
        try:
            self._parsed[reading.name] = (reading.text, read(reading.name, reading.text))
        except (FormatError, TopologyError) as error:
            return replace(reading, text="", problem=CollectorProblem.UNREADABLE, message=str(error)[:500])
        return reading

    def _with_fallback(self, reading: Reading, now_s: float) -> Reading:
        at_s, good = self._good.get(reading.name, (float("-inf"), reading))
        return good if reading.problem is not None and now_s - at_s <= self._keep_s else reading

    def _parts(self, readings: Iterable[Reading]) -> list[tuple[str, NodeTopology | Fabric]]:
        parts = []
        for reading in readings:
            part = self._parsed[reading.name][1] if reading.problem is None else None
            if part is not None:
                parts.append((reading.name, part))
        return parts

    def _log(self, readings: Iterable[Reading]) -> None:
        """Logs each problem once, when it appears and when it is gone."""
        for reading in readings:
            message = (
                "" if reading.problem in (None, CollectorProblem.ABSENT) else f"{reading.problem}: {reading.message}"
            )
            if message != self._reported.get(reading.name, ""):
                _LOG.warning("%s: %s", reading.name, message) if message else _LOG.info(
                    "%s answers again", reading.name
                )
            self._reported[reading.name] = message
