"""A visible formula for the order of waiting workloads, and how long others may overtake one at most.

    score = min(class + age_per_hour × hours waited + per_doubling × log2(GPUs) - usage × share used, top)

``top`` is the score of the highest class with most GPUs and nothing used, at its submission. Order: the highest score
first; of equal ones what was submitted first. Whatever has reached ``top`` is overtaken by nothing that is submitted
later, which takes ``PriorityFormula.overtaken_for_s`` at most, whatever else comes.

``queue_order`` says the same as one number that stands for good, ``order_writes`` where it is written, and
``standing_order`` what of it is to be written now.
"""

from kopt.policies.priority.formula import PendingWorkload, PriorityFormula, Scored
from kopt.policies.priority.overtaking import Overtaking, overtakings

__all__ = ["Overtaking", "PendingWorkload", "PriorityFormula", "Scored", "overtakings"]
