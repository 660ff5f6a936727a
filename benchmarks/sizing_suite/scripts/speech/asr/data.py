"""Utterances of random length, padded within a batch."""
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class Utterances(Dataset):
    def __init__(self, count, frames, vocab, mels=80):
        rng = random.Random(0)
        # the first of every batch is as long as they get
        self.frames = [frames if i % 4 == 0 else rng.randint(frames // 2, frames) for i in range(count)]
        self.vocab, self.mels = vocab, mels

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return torch.randn(self.frames[i], self.mels), torch.randint(1, self.vocab, (self.frames[i] // 16,))


def collate(items):
    mels, texts = zip(*items)
    return (pad_sequence(mels, batch_first=True), torch.tensor([len(m) for m in mels]),
            pad_sequence(texts, batch_first=True), torch.tensor([len(t) for t in texts]))
