"""One look at the node: every collector by itself, then one topology of all that could be read.

What a collector brought last stands in for it while it fails, for a time: a tool that hangs says nothing about links.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kopt.agents.topology.facts import Facts, facts_of
from kopt.agents.topology.merging import merge, read
from kopt.agents.topology.readings import Collector, CollectorError, Reading, Trouble
from kopt.core.fabric import Fabric
from kopt.core.topology import NodeTopology, TopologyError
from kopt.formats.topology import FormatError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What a scan found. ``topology`` is None where no collector tells of a GPU. ``stale``: collectors whose part is of
    an earlier scan."""

    topology: NodeTopology | None
    facts: Facts = Facts()
    readings: tuple[Reading, ...] = ()
    warnings: tuple[str, ...] = ()
    stale: frozenset[str] = frozenset()
    fabric: Fabric | None = None


class Scanner:
    """``keep_s``: how long an earlier reading stands in for a collector that fails."""

    def __init__(self, collectors: Sequence[Collector], keep_s: float = 900.0,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._collectors, self._keep_s, self._clock = tuple(collectors), keep_s, clock
        self._good: dict[str, tuple[float, Reading]] = {}
        self._parsed: dict[str, tuple[str, NodeTopology | Fabric | None]] = {}
        self._told: dict[str, str] = {}

    async def scan(self, limit_s: float | None = None) -> Found:
        """Ends within the limits of the slowest collector, or ``limit_s``, whatever happens to any of them."""
        every = await asyncio.gather(*(self._collect(one, limit_s) for one in self._collectors))
        readings = [self._judged(one) for one in every]
        now_s = self._clock()
        self._good |= {one.name: (now_s, one) for one in readings if one.trouble is None}
        used = [self._in_place_of(one, now_s) for one in readings]
        stale = {one.name for one, other in zip(readings, used, strict=True) if one is not other}
        self._log(readings)
        facts = facts_of(used)
        whole = merge(self._parts(used), facts)
        return Found(whole.topology, facts, tuple(readings), whole.warnings, frozenset(stale), whole.fabric)

    async def _collect(self, collector: Collector, limit_s: float | None) -> Reading:
        began_s = self._clock()
        text, trouble, message = "", None, ""
        try:
            async with asyncio.timeout(limit_s):
                text = await collector.collect()
        except TimeoutError:
            trouble, message = Trouble.TIMEOUT, f"no answer within {limit_s or 0:g} s"
        except CollectorError as error:
            trouble, message = error.trouble, str(error)
        except Exception as error:  # noqa: BLE001 - whatever breaks one collector must not stop the others
            trouble, message = Trouble.FAILED, repr(error)
        return Reading(collector.name, text, trouble, message, self._clock() - began_s)

    def _judged(self, reading: Reading) -> Reading:
        """The reading, or what is wrong with its text."""
        known = self._parsed.get(reading.name)
        if reading.trouble is not None or (known is not None and known[0] == reading.text):
            return reading
        try:
            self._parsed[reading.name] = (reading.text, read(reading.name, reading.text))
        except (FormatError, TopologyError) as error:
            return replace(reading, text="", trouble=Trouble.UNREADABLE, message=str(error)[:500])
        return reading

    def _in_place_of(self, reading: Reading, now_s: float) -> Reading:
        at_s, good = self._good.get(reading.name, (float("-inf"), reading))
        return good if reading.trouble is not None and now_s - at_s <= self._keep_s else reading

    def _parts(self, readings: Iterable[Reading]) -> list[tuple[str, NodeTopology | Fabric]]:
        found = []
        for one in readings:
            part = self._parsed[one.name][1] if one.trouble is None else None
            if part is not None:
                found.append((one.name, part))
        return found

    def _log(self, readings: Iterable[Reading]) -> None:
        """Each trouble once, when it comes and when it goes."""
        for one in readings:
            said = "" if one.trouble in (None, Trouble.ABSENT) else f"{one.trouble}: {one.message}"
            if said != self._told.get(one.name, ""):
                _LOG.warning("%s: %s", one.name, said) if said else _LOG.info("%s answers again", one.name)
            self._told[one.name] = said
