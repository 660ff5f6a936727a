"""The typical pods of each GPU resource, learned from the pods that came."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kopt.core.scheduling.placement import ANY_POOL, Ask
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.pool import Pool
from kopt.policies.placement.typical import Kind, TypicalPods, kind

_FIRST = 16
_PREPARED = 16
_GIVE_WAY_S = 0.0005
"""How soon a call gets the interpreter from the thread that learns; by itself it would be 5 ms."""


@dataclass
class _History:
    kinds: deque[Kind]
    new: int = 0
    learned_from: int = 0
    examples: dict[Kind, Ask] = field(default_factory=dict)


class Learner:
    """The latest ``window`` requests per resource. Learns anew when a quarter of what it knew is new, or ``every``."""

    def __init__(self, window: int = 4000, every: int = 1000) -> None:
        self._window, self._every = window, every
        self._histories: dict[str, _History] = {}

    def saw(self, ask: Ask) -> None:
        """Note one pod."""
        if not ask.uses_gpus:
            return
        history = self._histories.setdefault(ask.pool, _History(deque(maxlen=self._window)))
        what = kind(ask.request)
        history.kinds.append(what)
        history.new += 1
        history.examples[what] = ask

    async def teach(self, fleet: Fleet) -> int:
        """Give each resource whose history has moved on its typical pods anew; how many were.

        Decisions go on meanwhile, by what was known before.
        """
        shares = self._histories.get(ANY_POOL)
        due = []
        for name, pool in fleet.pools.items():
            own = self._histories.get(name)
            parts = [item for item in (own, shares if name.endswith("/gpu") else None) if item is not None]
            if any(self._due(item) for item in parts):
                counts = Counter(kind for part in parts for kind in part.kinds)
                frequent = [
                    part.examples[what] for part in parts for what, _ in Counter(part.kinds).most_common(_PREPARED)
                ]
                due.append((pool, TypicalPods.from_counts(counts), frequent))
        for history in self._histories.values():
            if self._due(history):
                history.learned_from, history.new = len(history.kinds), 0
                history.examples = {
                    what: history.examples[what] for what in set(history.kinds) & history.examples.keys()
                }
        for pool, typical, frequent in due:
            await _learn(pool, typical, frequent)
        return len(due)

    def _due(self, history: _History) -> bool:
        return history.new >= min(self._every, max(_FIRST, history.learned_from // 4))


async def _learn(pool: Pool, typical: TypicalPods, frequent: Sequence[Ask]) -> None:
    """Work out the valuation in a thread and the most frequent requests one by one, then go over to them at once."""
    fresh = FragmentationCache(typical)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_GIVE_WAY_S)
    try:
        valuation = await asyncio.to_thread(fresh.learn, pool.state, typical)
    finally:
        sys.setswitchinterval(before_s)
    fresh.adopt(pool.state, typical, valuation)
    for ask in frequent:
        for _ in fresh.prepare(pool.state, ask.request):
            await asyncio.sleep(0)
    pool.cache = fresh
