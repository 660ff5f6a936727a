"""How the line classifier is fitted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FitSettings:
    """``width``: of a word's vector; ``hidden``: of the layers; ``kept``: of the mean of the weights, with every
    step; the rest is how Adam goes through the sequences."""

    width: int = 24
    hidden: int = 64
    epochs: int = 8
    learning_rate: float = 0.01
    batch: int = 12
    words_dropped: float = 0.15
    kept: float = 0.99
    seed: int = 0
