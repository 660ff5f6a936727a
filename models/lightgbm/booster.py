"""LightGBM boosters as text files, read without trusting them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.models.lightgbm.text import checked_text

if TYPE_CHECKING:
    import lightgbm


def import_lightgbm_alone() -> None:
    """Imports LightGBM without scikit-learn, which is two of its three seconds.

    LightGBM looks for it to offer wrappers in its style, which is not used here, and works without it.
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
    """Raises ValueError with the file's name. LightGBM ends or hangs the process on a text that lies, so the text is
    checked first and only what was checked is passed on."""
    import lightgbm

    try:
        return lightgbm.Booster(model_str=checked_text(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, lightgbm.basic.LightGBMError) as error:
        raise ValueError(f"{path}: no trees can be read ({error})") from error
