"""Batches of the line classifier's training, put together from lines that were taken apart once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classifier.lines import LineClassifier
from kopt.models.checkpoint.classifier.network import _Corpus, fit
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import Lines
from kopt.models.checkpoint.classifier.tokens import bigrams, parts_of_pair, parts_of_word, row_of, template, tokens
from kopt.models.checkpoint.predictor import CheckpointPredictor

_SEQUENCES = (
    Lines(("step 1 loss 0.5", "saving model to /a/b/c.pt"), (LineLabel.TRAIN_STEP, LineLabel.CKPT_BEGIN), (1.0, 1.0)),
    Lines(("evaluating",), (LineLabel.EVAL,), (1.0,)),
    Lines(("step 2 loss 0.4", "saved", "step 3 loss 0.3"), (None, LineLabel.CKPT_END, LineLabel.TRAIN_STEP), (0, 1, 1)),
)


def rows_of(message: str) -> list[tuple[int, ...]]:
    line = tokens(template(message))
    parts = [*map(parts_of_word, line), *map(parts_of_pair, bigrams(line))]
    return [tuple(map(row_of, token)) for token in parts]


def lines_of(batch: object) -> list[list[tuple[int, ...]]]:
    pieces = torch.tensor_split(batch.rows, batch.row_starts[1:])  # type: ignore[attr-defined]
    numbers = torch.tensor_split(batch.tokens, batch.token_starts[1:])  # type: ignore[attr-defined]
    return [[tuple(pieces[n].tolist()) for n in line.tolist()] for line in numbers]


def test_a_batch_has_the_rows_of_each_line_in_the_order_of_the_selected_sequences() -> None:
    batch = _Corpus(_SEQUENCES).batch([2, 0], 0.0, np.random.RandomState(0))
    messages = (*_SEQUENCES[2].messages, *_SEQUENCES[0].messages)
    assert lines_of(batch) == [rows_of(message) for message in messages]


def test_tokens_are_dropped_by_their_share_and_no_line_loses_all() -> None:
    corpus = _Corpus(_SEQUENCES * 40)
    selected = list(range(len(_SEQUENCES) * 40))
    everything = len(corpus.batch(selected, 0.0, np.random.RandomState(0)).tokens)
    thinned = corpus.batch(selected, 0.3, np.random.RandomState(0))
    assert 0.65 < len(thinned.tokens) / everything < 0.75
    bare = corpus.batch(selected, 1.0, np.random.RandomState(0))
    assert len(bare.tokens) == everything


def test_a_fit_answers_the_same_again_and_leaves_the_number_of_threads() -> None:
    threads, settings = torch.get_num_threads(), FitSettings(epochs=1, width=4, hidden=8)
    first, second = (fit(_SEQUENCES, settings) for _ in range(2))
    assert np.array_equal(first.table, second.table)
    assert torch.get_num_threads() == threads


def test_words_that_were_not_learned_from_say_nothing(tmp_path: Path) -> None:
    predictor = CheckpointPredictor(FitSettings(epochs=1, width=4, hidden=8))
    predictor._classifier = LineClassifier(fit(_SEQUENCES, predictor.settings))
    predictor.save(tmp_path)
    for classifier in (predictor.classifier, CheckpointPredictor.load(tmp_path).classifier):
        learned = tokens(template(_SEQUENCES[0].messages[1]))
        rows = classifier._rows(learned)
        assert len(rows) == len(learned) + len(bigrams(learned))
        strange = [*learned[:4], "xyzzyx", *learned[4:]]
        known = classifier._rows(strange)
        assert len(known) == len(rows) - 1, "all but the pair that the strange word came between"
        assert set(known) < set(rows)
    with pytest.raises(ValueError, match="knows"):
        replace(predictor.classifier.parameters, known=np.zeros(3, np.float32))
    older = LineClassifier(replace(predictor.classifier.parameters, known=np.zeros(0, np.uint32)))
    assert len(older._rows(strange)) == len(strange) + len(bigrams(strange))
