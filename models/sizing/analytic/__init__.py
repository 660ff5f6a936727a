"""Memory from arguments alone: a ``TrainingPlan`` in, memory per rank with reasons and an interval out.

Formulas of the papers named beside each; nothing is fitted to measurements here. What they miss is learned from
``features_of`` by the residual.
"""

from kopt.models.sizing.analytic.estimate import AnalyticEstimate, estimate_plan, reserved_bytes
from kopt.models.sizing.analytic.features import features_of
from kopt.models.sizing.analytic.recorded import formula_of_run, plan_of_run

__all__ = ["AnalyticEstimate", "estimate_plan", "features_of", "formula_of_run", "plan_of_run", "reserved_bytes"]
