"""Templates → shares of the labels of each line, in numpy: fifty thousand lines a second on one core, without torch.

Most lines of a log are of a few templates, and most words of a new template were seen before: both are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classifier.tokens import ROWS, bigrams, rows_of_pair, rows_of_word, tokens

Array = NDArray[np.float32]
LABELS = tuple(LineLabel)
CONTEXT_LINES = 3
"""How many lines before a line say what it means."""
_MOST_TEMPLATES = 50_000
_MOST_TOKENS = 100_000
_PIECE = 32
"""Rows of a product: OpenBLAS is single-threaded below 2^18 multiplications."""


@dataclass(frozen=True)
class Parameters:
    """``table``: (ROWS, width); weights (in, out) and biases of the layers first, alone, second and within."""

    table: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    def __post_init__(self) -> None:
        width, hidden = self.table.shape[1], self.weights[0].shape[1]
        context = hidden + CONTEXT_LINES * len(LABELS)
        shapes = ((2 * width, hidden), (hidden, len(LABELS)), (context, hidden), (hidden, len(LABELS)))
        if self.table.shape[0] != ROWS or tuple(weight.shape for weight in self.weights) != shapes:
            raise ValueError("the layers of the line classifier do not fit each other")
        if tuple(biase.shape for biase in self.biases) != tuple((shape[1],) for shape in shapes):
            raise ValueError("the biases of the line classifier do not fit its layers")
        if not all(np.isfinite(array).all() for array in (self.table, *self.weights, *self.biases)):
            raise ValueError("the line classifier has parameters that are no numbers")


class LineClassifier:
    """Shares of the labels of lines, alone and after the lines before them. One object serves many logs."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        # Words get rows in order of arrival; of a template the output of the first layer is cached.
        self._token_rows: dict[str, int] = {}
        self._vectors = np.zeros((1024, parameters.table.shape[1]), np.float32)
        self._numbers: dict[str, int] = {}
        self._hidden = np.zeros((256, parameters.weights[0].shape[1]), np.float32)
        self._alone = np.zeros((256, len(LABELS)), np.float32)

    def alone(self, templates: Sequence[str]) -> tuple[Array, Array]:
        """Hidden features (n, hidden) and shares of the labels (n, labels), each line on its own, by its template."""
        if len(self._numbers) > _MOST_TEMPLATES:
            self._numbers.clear()
        numbers = self._numbers
        fresh = list(dict.fromkeys(template for template in templates if template not in numbers))
        if fresh:
            self._learn(fresh)
        at = [numbers[template] for template in templates]
        return self._hidden[at], self._alone[at]

    def within(self, hidden: Array, before: Array) -> Array:
        """Shares of the labels (n, labels); ``before``: shares of the lines before (n, CONTEXT_LINES, labels)."""
        weights, biases = self.parameters.weights, self.parameters.biases
        inputs = np.concatenate([hidden, before.reshape(len(hidden), -1)], axis=1)
        return _shares(_times(np.maximum(_times(inputs, weights[2]) + biases[2], 0.0), weights[3]) + biases[3])

    def _learn(self, fresh: list[str]) -> None:
        """Runs new templates through the first layer and caches its output."""
        if len(self._token_rows) > _MOST_TOKENS:
            self._token_rows.clear()
        token_lists = [tokens(name) for name in fresh]
        lines = [self._rows(line) for line in token_lists]
        counts = np.fromiter(map(len, lines), np.int64, len(lines))
        starts = np.cumsum(counts) - counts
        vectors = self._vectors[np.fromiter(chain.from_iterable(lines), np.int64, int(counts.sum()))]
        mean = np.add.reduceat(vectors, starts) / np.sqrt(counts)[:, None].astype(np.float32)
        pooled = np.concatenate([mean, np.maximum.reduceat(vectors, starts)], axis=1)
        weights, biases = self.parameters.weights, self.parameters.biases
        hidden = np.maximum(_times(pooled, weights[0]) + biases[0], 0.0)
        first = len(self._numbers)
        self._hidden = _holding(self._hidden, first + len(fresh))
        self._alone = _holding(self._alone, first + len(fresh))
        self._hidden[first : first + len(fresh)] = hidden
        self._alone[first : first + len(fresh)] = _shares(_times(hidden, weights[1]) + biases[1])
        self._numbers.update(zip(fresh, range(first, first + len(fresh)), strict=True))

    def _rows(self, line: list[str]) -> list[int]:
        """The rows of the vectors of a line's words and bigrams."""
        rows = self._token_rows
        both = line + bigrams(line)
        try:
            return [rows[name] for name in both]
        except KeyError:
            for number, name in enumerate(both):
                if name not in rows:
                    self._add(name, rows_of_word(name) if number < len(line) else rows_of_pair(name))
            return [rows[name] for name in both]

    def _add(self, word: str, rows: tuple[int, ...]) -> None:
        row = len(self._token_rows)
        self._vectors = _holding(self._vectors, row + 1)
        table = self.parameters.table
        self._vectors[row] = table[rows[0]] if len(rows) == 1 else table[list(rows)].mean(axis=0)
        self._token_rows[word] = row


def _holding(array: Array, rows: int) -> Array:
    """The array, enlarged to at least this many rows."""
    if rows <= len(array):
        return array
    grown = np.zeros((max(rows, 2 * len(array)), array.shape[1]), np.float32)
    grown[: len(array)] = array
    return grown


def _times(rows: Array, weights: Array) -> Array:
    """``rows @ weights`` in pieces so small that BLAS starts no threads: they would spend more on each other."""
    array = np.empty((len(rows), weights.shape[1]), np.float32)
    for start in range(0, len(rows), _PIECE):
        np.matmul(rows[start : start + _PIECE], weights, out=array[start : start + _PIECE])
    return array


def _shares(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    array: Array = raised / raised.sum(axis=1, keepdims=True)
    return array
