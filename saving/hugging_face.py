"""The callback for Hugging Face's Trainer: ``Trainer(…, callbacks=[SaveOnRequest()])``.

With several processes all must save at the same step, and each sees its own file: they agree every few steps, as soon
as one of them was asked.
"""

import os
from typing import Any

from transformers import TrainerCallback

from kopt.saving.requests import ANNOTATIONS_FILE, SaveRequests

_AGREE_EVERY = 10


class SaveOnRequest(TrainerCallback):  # type: ignore[misc]
    """Has the Trainer write a checkpoint at the end of the step in which it was asked to.

    ``agree_every``: steps between two agreements of several processes; each costs a small all-reduce.
    """

    def __init__(self, path: str | os.PathLike[str] = ANNOTATIONS_FILE, agree_every: int = _AGREE_EVERY) -> None:
        self._requests, self._agree_every = SaveRequests(path), max(1, agree_every)
        self._wanted = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._wanted = self._requests.asked() or self._wanted
        if self._agreed(args, state.global_step):
            self._wanted = False
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._requests.saved()
        return control

    def _agreed(self, args: Any, step: int) -> bool:
        if args.world_size <= 1:
            return self._wanted
        if step % self._agree_every:
            return False
        import torch

        word = torch.tensor([int(self._wanted)], device=args.device)
        torch.distributed.all_reduce(word, op=torch.distributed.ReduceOp.MAX)
        return bool(word.item())
