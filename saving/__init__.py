"""What a training program imports so that it can be asked to save before it is stopped.

In: the pod's annotations as a file (downward API). Out: "save now", once for each request. Standard library only, so
that it costs a training image nothing; ``SaveOnRequest``, the callback for Hugging Face's Trainer, loads transformers.

    requests = SaveRequests()
    for step in range(steps):
        ...
        if requests.asked():
            save_checkpoint()
"""

from typing import TYPE_CHECKING, Any

from kopt.saving.requests import ANNOTATIONS_FILE, SaveRequests

if TYPE_CHECKING:
    from kopt.saving.hugging_face import SaveOnRequest

__all__ = ["ANNOTATIONS_FILE", "SaveOnRequest", "SaveRequests"]


def __getattr__(name: str) -> Any:
    if name == "SaveOnRequest":
        from kopt.saving.hugging_face import SaveOnRequest

        return SaveOnRequest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
