"""The trainer that ``trainers.TRAINERS`` lists: NeMo's command or one of its scripts."""

from kopt.core.workload.training_plan import TrainingPlan
from kopt.formats.trainers.nemo import hydra, recipes
from kopt.formats.trainers.trainer import PlanInputs, Trainer


def _by_script(inputs: PlanInputs) -> bool:
    return inputs.script.endswith(".py")


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return hydra.hydra_plan(inputs) if _by_script(inputs) else recipes.recipe_plan(inputs)


def _processes(inputs: PlanInputs) -> int | None:
    return hydra.processes(inputs) if _by_script(inputs) else recipes.processes(inputs)


TRAINER = Trainer("nemo", _plan, commands=("nemo", "nemorun"), script=hydra.SCRIPTS, processes=_processes)
