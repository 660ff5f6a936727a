"""The line classifier's network and its training: word vectors → the label of a line in its context.

A line is the mean and the maximum of its words' vectors (Joulin et al., "Bag of Tricks for Efficient Text
Classification", 2016, with the maximum beside). A first layer says what the line means on its own, a second what it
means after the lines before it of the same process: the third line of a traceback, a file of a checkpoint.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classifier.lines import CONTEXT_LINES, Parameters
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import Lines
from kopt.models.checkpoint.classifier.tokens import ROWS, bigrams, rows_of_pair, rows_of_word, template, tokens

LABELS = tuple(LineLabel)
_NUMBER_OF = {label: number for number, label in enumerate(LABELS)}
UNLABELLED = -1


Token = tuple[int, ...]


def token_rows(message: str) -> list[Token]:
    """The rows of each token of a message."""
    line = tokens(template(message))
    return [*map(rows_of_word, line), *map(rows_of_pair, bigrams(line))]


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

    def forward(self, lines: list[list[Token]], lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """``lines`` of all sequences one after the other, ``lengths`` of the sequences."""
        hidden = torch.relu(self.first(self.dropout(self._pooled(lines))))
        alone = self.alone(self.dropout(hidden))
        before = _before(torch.softmax(alone, 1).detach(), lengths)
        within = torch.relu(self.second(self.dropout(torch.cat([hidden, before], 1))))
        return alone, self.within(self.dropout(within))

    def _pooled(self, lines: list[list[Token]]) -> torch.Tensor:
        flat = torch.tensor([row for line in lines for token in line for row in token])
        sizes = torch.tensor([len(token) for line in lines for token in line])
        vectors = self.table(flat, torch.cumsum(sizes, 0) - sizes)
        counts = torch.tensor([len(line) for line in lines])
        number = torch.repeat_interleave(torch.arange(len(lines)), counts)
        position = torch.arange(len(vectors)) - torch.repeat_interleave(torch.cumsum(counts, 0) - counts, counts)
        padded = torch.full((len(lines), int(counts.max()), vectors.shape[1]), -1e4)
        padded = padded.index_put((number, position), vectors)
        total = torch.zeros(len(lines), vectors.shape[1]).index_add(0, number, vectors)
        return torch.cat([total / counts[:, None] ** 0.5, padded.max(1).values], 1)


def _before(shares: torch.Tensor, lengths: list[int]) -> torch.Tensor:
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
    """Fit on labelled lines of all sequences. ``progress`` is called with the batches done and their number."""
    torch.manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    rows = [[token_rows(message) for message in sequence.messages] for sequence in sequences]
    wanted = [
        [UNLABELLED if label is None else _NUMBER_OF[label] for label in sequence.labels] for sequence in sequences
    ]
    network = LineNetwork(settings)
    # The mean over the last steps says the same of more things than the last step does (Izmailov et al., 2018).
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.kept))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    batches = -(-len(sequences) // settings.batch)
    steps = settings.epochs * batches
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps, pct_start=0.15)
    done = 0
    for _ in range(settings.epochs):
        order = list(range(len(sequences)))
        rng.shuffle(order)
        for start in range(0, len(order), settings.batch):
            selected = order[start : start + settings.batch]
            lines = [_thinned(line, settings.words_dropped, rng) for n in selected for line in rows[n]]
            target = torch.tensor([label for n in selected for label in wanted[n]])
            weight = torch.tensor([w for n in selected for w in sequences[n].weights])
            both = network(lines, [len(rows[n]) for n in selected])
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
    return _parameters(network.eval())


def _thinned(line: list[Token], share: float, rng: random.Random) -> list[Token]:
    return [token for token in line if rng.random() > share] or line


def _loss(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    each = nn.functional.cross_entropy(logits, target, reduction="none", label_smoothing=0.05, ignore_index=UNLABELLED)
    labelled = target != UNLABELLED
    return (each * weight)[labelled].sum() / labelled.sum().clamp(min=1)


def _parameters(network: LineNetwork) -> Parameters:
    def array(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().numpy().astype(np.float32)

    layers = (network.first, network.alone, network.second, network.within)
    weights = [array(layer.weight).T.copy() for layer in layers]
    biases = [array(layer.bias) for layer in layers]
    # Kept in half precision: what is fitted answers as what is loaded.
    table = array(network.table.weight).astype(np.float16).astype(np.float32)
    return Parameters(table, tuple(weights), tuple(biases))
