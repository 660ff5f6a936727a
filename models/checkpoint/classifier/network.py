"""The line classifier's network and its training: word vectors → the label of a line in its context.

A line is the mean and the maximum of its words' vectors (Joulin et al., "Bag of Tricks for Efficient Text
Classification", 2016, with the maximum beside). A first layer says what the line means on its own, a second what it
means after the lines before it of the same process: the third line of a traceback, a file of a checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classifier.lines import CONTEXT_LINES, Parameters
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import Lines
from kopt.models.checkpoint.classifier.tokens import (
    ROWS,
    bigrams,
    parts_of_pair,
    parts_of_word,
    row_of,
    template,
    tokens,
)

LABELS = tuple(LineLabel)
_NUMBER_OF = {label: number for number, label in enumerate(LABELS)}
UNLABELLED = -1


@dataclass(frozen=True)
class _Batch:
    """Lines as numbers of their distinct tokens, and the rows of the table that each of those is the mean of.

    ``token_starts`` and ``row_starts``: where each line's tokens, and each token's rows, begin.
    """

    tokens: torch.Tensor
    token_starts: torch.Tensor
    rows: torch.Tensor
    row_starts: torch.Tensor


class _Corpus:
    """All lines of all sequences, each distinct message taken apart once: batches are then put together in numpy."""

    def __init__(self, sequences: Sequence[Lines]) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._parts = set[int]()
        line_of: dict[str, int] = {}
        lines = list[list[int]]()
        numbers = list[int]()
        for message in (message for sequence in sequences for message in sequence.messages):
            text = template(message)
            if text not in line_of:
                line_of[text] = len(lines)
                lines.append(self._tokens(text))
            numbers.append(line_of[text])
        self._lengths = np.array([len(sequence.messages) for sequence in sequences])
        self._firsts = np.cumsum(self._lengths) - self._lengths
        self._lines = np.array(numbers)
        self._token_counts, self._token_starts, self._tokens_flat = _flattened(lines)
        self._row_counts, self._row_starts, self._rows_flat = _flattened(list(self._numbers))

    def _tokens(self, text: str) -> list[int]:
        line = tokens(text)
        parts = [*map(parts_of_word, line), *map(parts_of_pair, bigrams(line))]
        self._parts.update(chain.from_iterable(parts))
        rows = [tuple(map(row_of, token)) for token in parts]
        return [self._numbers.setdefault(token, len(self._numbers)) for token in rows]

    @property
    def parts(self) -> np.ndarray:
        """The numbers of all words, their pieces and pairs of neighbours, in order: (n,) of uint32."""
        return np.array(sorted(self._parts), np.uint32)

    def batch(self, selected: Sequence[int], share: float, rng: np.random.RandomState) -> _Batch:
        """The lines of these sequences without that share of their tokens; a line that loses all of them keeps all."""
        lines = self._lines[_ranges(self._firsts[selected], self._lengths[selected])]
        counts = self._token_counts[lines]
        numbers = self._tokens_flat[_ranges(self._token_starts[lines], counts)]
        line_of_token = np.repeat(np.arange(len(lines)), counts)
        kept = rng.random_sample(len(numbers)) > share
        left = np.bincount(line_of_token[kept], minlength=len(lines))
        kept |= (left == 0)[line_of_token]
        left = np.where(left == 0, counts, left)
        distinct, positions = np.unique(numbers[kept], return_inverse=True)
        row_counts = self._row_counts[distinct]
        rows = self._rows_flat[_ranges(self._row_starts[distinct], row_counts)]
        arrays = (positions, np.cumsum(left) - left, rows, np.cumsum(row_counts) - row_counts)
        return _Batch(*map(torch.from_numpy, arrays))


def _flattened(items: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many each has, where each begins, and all of them one after the other."""
    counts = np.array([len(item) for item in items])
    return counts, np.cumsum(counts) - counts, np.fromiter(chain.from_iterable(items), np.int64, int(counts.sum()))


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``start, start + 1, …`` of each, so many as its count, one after the other."""
    shifts: np.ndarray = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    result: np.ndarray = np.arange(len(shifts)) + shifts
    return result


class LineNetwork(nn.Module):
    """Logits of every line (n, labels) on its own, and in its context."""

    def __init__(self, settings: FitSettings) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
        self.table = nn.EmbeddingBag(ROWS, width, mode="mean", padding_idx=0)
        nn.init.normal_(self.table.weight, 0.0, 0.3)
        self.first = nn.Linear(2 * width, hidden)
        self.alone = nn.Linear(hidden, len(LABELS))
        self.second = nn.Linear(hidden + CONTEXT_LINES * len(LABELS), hidden)
        self.within = nn.Linear(hidden, len(LABELS))
        self.dropout = nn.Dropout(0.2)

    def forward(self, batch: _Batch, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The lines of all sequences one after the other, ``lengths`` of the sequences."""
        hidden = torch.relu(self.first(self.dropout(self._pooled(batch))))
        alone = self.alone(self.dropout(hidden))
        before = _before(torch.softmax(alone, 1).detach(), lengths)
        within = torch.relu(self.second(self.dropout(torch.cat([hidden, before], 1))))
        return alone, self.within(self.dropout(within))

    def _pooled(self, batch: _Batch) -> torch.Tensor:
        vectors = self.table(batch.rows, batch.row_starts)
        counts = torch.diff(batch.token_starts, append=torch.tensor([len(batch.tokens)]))
        total = nn.functional.embedding_bag(batch.tokens, vectors, batch.token_starts, mode="sum")
        largest = nn.functional.embedding_bag(batch.tokens, vectors, batch.token_starts, mode="max")
        return torch.cat([total / counts[:, None] ** 0.5, largest], 1)


def _before(shares: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The shares of the lines before each line, the nearest first; zeros before the start of a sequence."""
    position = torch.cat([torch.arange(length) for length in lengths])
    shifted = []
    for back in range(1, CONTEXT_LINES + 1):
        moved = torch.roll(shares, back, 0)
        shifted.append(torch.where((position >= back)[:, None], moved, torch.zeros(())))
    return torch.cat(shifted, 1)


def fit(
    sequences: Sequence[Lines], settings: FitSettings, progress: Callable[[int, int], None] | None = None
) -> Parameters:
    """Fit on labelled lines of all sequences. ``progress`` is called with the batches done and their number.

    On one core: batches are so small that threads would mostly wait for each other, and fits differ by their number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _fit(sequences, settings, progress)
    finally:
        torch.set_num_threads(threads)


def _fit(sequences: Sequence[Lines], settings: FitSettings, progress: Callable[[int, int], None] | None) -> Parameters:
    torch.manual_seed(settings.seed)
    rng = np.random.RandomState(settings.seed)
    corpus = _Corpus(sequences)
    wanted = [
        [UNLABELLED if label is None else _NUMBER_OF[label] for label in sequence.labels] for sequence in sequences
    ]
    network = LineNetwork(settings)
    # The mean over the last steps says the same of more things than the last step does (Izmailov et al., 2018).
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.kept))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    batches = -(-len(sequences) // settings.batch)
    steps = settings.epochs * batches
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps, pct_start=0.15)
    done = 0
    for _ in range(settings.epochs):
        order = rng.permutation(len(sequences))
        for start in range(0, len(order), settings.batch):
            selected = order[start : start + settings.batch].tolist()
            target = torch.tensor([label for n in selected for label in wanted[n]])
            weight = torch.tensor([w for n in selected for w in sequences[n].weights])
            batch = corpus.batch(selected, settings.words_dropped, rng)
            both = network(batch, [len(wanted[n]) for n in selected])
            loss = _loss(both[0], target, weight) + _loss(both[1], target, weight)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            average.update_parameters(network)
            done += 1
            if progress:
                progress(done, steps)
    network.load_state_dict(average.module.state_dict())
    return _parameters(network.eval(), corpus.parts)


def _loss(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    each = nn.functional.cross_entropy(logits, target, reduction="none", label_smoothing=0.05, ignore_index=UNLABELLED)
    labelled = target != UNLABELLED
    return (each * weight)[labelled].sum() / labelled.sum().clamp(min=1)


def _parameters(network: LineNetwork, known: np.ndarray) -> Parameters:
    def array(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().numpy().astype(np.float32)

    layers = (network.first, network.alone, network.second, network.within)
    weights = [array(layer.weight).T.copy() for layer in layers]
    biases = [array(layer.bias) for layer in layers]
    # Kept in half precision: what is fitted answers as what is loaded.
    table = array(network.table.weight).astype(np.float16).astype(np.float32)
    return Parameters(table, tuple(weights), tuple(biases), known)
