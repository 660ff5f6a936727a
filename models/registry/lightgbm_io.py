"""LightGBM boosters as text files, read without trusting them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lightgbm


def import_lightgbm_alone() -> None:
    """Imports LightGBM without scikit-learn, which is two of its three seconds.

    LightGBM looks for it to offer wrappers in its style, which nobody here uses, and does without where it is absent.
    For commands only: an import of scikit-learn in another thread fails meanwhile.
    """
    if "lightgbm" in sys.modules or "sklearn" in sys.modules:
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        import lightgbm  # noqa: F401
    finally:
        del sys.modules["sklearn"]


def load_booster(path: Path) -> "lightgbm.Booster":
    """Raises ValueError with the file's name. LightGBM ends the process on a text that stops within a tree, so the end
    is looked for first."""
    import lightgbm

    try:
        text = path.read_text(encoding="utf-8")
        if not text.startswith("tree\n") or "\nend of trees\n" not in text:
            raise ValueError("the text of the trees is not whole")
        return lightgbm.Booster(model_str=text)
    except (OSError, ValueError, lightgbm.basic.LightGBMError) as error:
        raise ValueError(f"{path}: no trees can be read ({error})") from error
