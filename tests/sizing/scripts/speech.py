"""Recurrent network with CTC, packed sequences and lengths that differ."""

import torch
from torch import nn

encoder = nn.LSTM(80, 256, num_layers=3, bidirectional=True, batch_first=True).cuda()
head = nn.Linear(512, 30).cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for _ in range(8):
    lengths = torch.tensor([400, 380, 300, 120])
    features = torch.randn(4, 400, 80).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(features, lengths, batch_first=True)
    states, _ = nn.utils.rnn.pad_packed_sequence(encoder(packed)[0], batch_first=True)
    scores = head(states).log_softmax(-1).transpose(0, 1)
    targets = torch.randint(1, 30, (4, 50)).cuda()
    loss = nn.functional.ctc_loss(scores, targets, lengths, torch.full((4,), 50))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
