"""A tree of queues → the objects of one engine and what they cannot express.

Nothing is lost on the way: every field that was written stands in an object, or is named in ``not_expressible``.
"""

from collections.abc import Callable

from kopt.core.scheduling.queue_tree import Compiled, Engine
from kopt.policies.queues import kai, kueue, volcano
from kopt.policies.queues.settings import Settings
from kopt.policies.queues.tree import QueueTree

_ENGINES: dict[Engine, Callable[[QueueTree, Settings], Compiled]] = {
    Engine.KUEUE: kueue.compiled,
    Engine.KAI: kai.compiled,
    Engine.VOLCANO: volcano.compiled,
}


def compile_tree(tree: QueueTree, engine: Engine, settings: Settings | None = None) -> Compiled:
    """The desired objects of an engine, in the order in which they are applied.

    Raises TreeError for what the engine would refuse or mean differently.
    """
    return _ENGINES[engine](tree, settings or Settings())
