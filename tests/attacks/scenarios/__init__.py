"""Every controller as its process makes it, over an API server in memory, with something ordinary that it has to do,
and the kinds of objects on which another tenant may write what they like."""

from .ledger import LEDGER
from .objects import Scenario
from .pairs import PAIRS
from .preemption import KAI, KUEUE, PLAIN
from .reallocation import REALLOCATION
from .sizing import SIZING
from .staging import STAGING

SCENARIOS: tuple[Scenario, ...] = (SIZING, STAGING, KUEUE, PLAIN, KAI, REALLOCATION, PAIRS, LEDGER)
