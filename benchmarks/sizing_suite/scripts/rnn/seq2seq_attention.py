"""Translation with a GRU encoder, additive attention and a decoder stepped in Python (teacher forcing)."""
import random
from argparse import ArgumentParser

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=0)
        self.rnn = nn.GRU(emb, hidden, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.embedding(src), lengths.cpu(), enforce_sorted=False)
        outputs, h = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs)
        return outputs, torch.tanh(self.fc(torch.cat((h[-2], h[-1]), dim=1)))


class Decoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb)
        self.energy, self.v = nn.Linear(3 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.cell = nn.GRUCell(2 * hidden + emb, hidden)
        self.out = nn.Linear(3 * hidden + emb, vocab)

    def forward(self, token, hidden, memory):
        steps = memory.shape[0]
        h = hidden.unsqueeze(0).expand(steps, -1, -1)
        weights = self.v(torch.tanh(self.energy(torch.cat((h, memory), dim=2)))).softmax(0)
        context = (weights * memory).sum(0)
        embedded = self.embedding(token)
        hidden = self.cell(torch.cat((embedded, context), dim=1), hidden)
        return self.out(torch.cat((hidden, context, embedded), dim=1)), hidden


def main():
    p = ArgumentParser()
    p.add_argument("--vocab", type=int, default=16000)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--length", type=int, default=50)
    p.add_argument("--teacher", type=float, default=1.0)
    p.add_argument("--updates", type=int, default=4)
    a = p.parse_args()
    random.seed(1)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    encoder = Encoder(a.vocab, 256, a.hidden).to(device)
    decoder = Decoder(a.vocab, 256, a.hidden).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    for update in range(a.updates):
        src = torch.randint(1, a.vocab, (a.length, a.batch)).to(device)
        trg = torch.randint(1, a.vocab, (a.length, a.batch)).to(device)
        memory, hidden = encoder(src, torch.full((a.batch,), a.length))
        token, logits = trg[0], []
        for t in range(1, a.length):
            scores, hidden = decoder(token, hidden, memory)
            logits.append(scores)
            token = trg[t] if random.random() < a.teacher else scores.argmax(1)
        loss = criterion(torch.stack(logits).view(-1, a.vocab), trg[1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1)
        optimizer.step()
        print(update, loss.item())


if __name__ == "__main__":
    main()
