"""Templates → shares of the labels of each line, in numpy: fifty thousand lines a second on one core, without torch.

Most lines of a log are of a few templates, and most words of a new template were seen before: both are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classifier.tokens import ROWS, bigrams, parts_of_pair, parts_of_word, row_of, tokens

Array = NDArray[np.float32]
LABELS = tuple(LineLabel)
CONTEXT_LINES = 3
"""How many lines before a line say what it means."""
_MOST_TEMPLATES = 50_000
_MOST_TOKENS = 100_000
_KNOWN_SHARE = 0.5
"""Of a word's parts: with fewer that were learned from, it says nothing."""
_PIECE = 32
"""Rows of a product: OpenBLAS is single-threaded below 2^18 multiplications."""


@dataclass(frozen=True)
class Parameters:
    """``table``: (ROWS, width); weights (in, out) and biases of the layers first, alone, second and within.

    ``known``: the numbers of the words, pieces of words and pairs of neighbours that were learned from, (n,) of uint32.
    Others share rows with them by their hash, so that their vectors are those of something else. Empty in models of
    releases that did not keep them: then all count as known.
    """

    table: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    known: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    def __post_init__(self) -> None:
        width, hidden = self.table.shape[1], self.weights[0].shape[1]
        context = hidden + CONTEXT_LINES * len(LABELS)
        shapes = ((2 * width, hidden), (hidden, len(LABELS)), (context, hidden), (hidden, len(LABELS)))
        if self.table.shape[0] != ROWS or tuple(weight.shape for weight in self.weights) != shapes:
            raise ValueError("the layers of the line classifier do not fit each other")
        if tuple(biase.shape for biase in self.biases) != tuple((shape[1],) for shape in shapes):
            raise ValueError("the biases of the line classifier do not fit its layers")
        if self.known.ndim != 1 or self.known.dtype != np.uint32:
            raise ValueError("the numbers of the words that the line classifier knows are none")
        if not all(np.isfinite(array).all() for array in (self.table, *self.weights, *self.biases)):
            raise ValueError("the line classifier has parameters that are no numbers")


class LineClassifier:
    """Shares of the labels of lines, alone and after the lines before them. One object serves many logs."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._known = frozenset(parameters.known.tolist())
        # Words get rows in order of arrival, those that nothing is known of none. Of a template the output of the first
        # layer is cached.
        self._token_rows: dict[str, int | None] = {}
        self._vector_count = 0
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
            self._vector_count = 0
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
        """The rows of the vectors of a line's words and pairs of neighbours that are known; of all where none is."""
        both = line + bigrams(line)
        for number, name in enumerate(both):
            if name not in self._token_rows:
                parts = parts_of_word(name) if number < len(line) else parts_of_pair(name)
                known = [part for part in parts if part in self._known] if self._known else parts
                self._token_rows[name] = self._add(known) if len(known) >= _KNOWN_SHARE * len(parts) else None
        rows = [row for row in map(self._token_rows.__getitem__, both) if row is not None]
        return rows or [self._add(parts_of_word(line[0]))]

    def _add(self, parts: Sequence[int]) -> int:
        """Keeps the vector of a token with these parts; returns its row."""
        row = self._vector_count
        self._vectors = _holding(self._vectors, row + 1)
        self._vectors[row] = self.parameters.table[[row_of(part) for part in parts]].mean(axis=0)
        self._vector_count += 1
        return row


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
