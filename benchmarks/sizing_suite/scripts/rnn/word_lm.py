# Word-level language model with an LSTM or GRU, weights updated by hand as in the classic example.
import argparse
import math

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="RNN language model")
parser.add_argument("--model", default="LSTM", help="LSTM, GRU, RNN_TANH")
parser.add_argument("--emsize", type=int, default=650)
parser.add_argument("--nhid", type=int, default=650)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--lr", type=float, default=20)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--batch_size", type=int, default=40)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--ntoken", type=int, default=33278)
parser.add_argument("--tied", action="store_true")
parser.add_argument("--batches", type=int, default=6)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(args.dropout)
        self.encoder = nn.Embedding(args.ntoken, args.emsize)
        if args.model in ("LSTM", "GRU"):
            self.rnn = getattr(nn, args.model)(args.emsize, args.nhid, args.nlayers, dropout=args.dropout)
        else:
            self.rnn = nn.RNN(args.emsize, args.nhid, args.nlayers, nonlinearity="tanh", dropout=args.dropout)
        self.decoder = nn.Linear(args.nhid, args.ntoken)
        if args.tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, args.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        zeros = weight.new_zeros(args.nlayers, bsz, args.nhid)
        return (zeros, zeros.clone()) if args.model == "LSTM" else zeros


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


corpus = torch.randint(args.ntoken, (args.batch_size * (args.bptt * args.batches + 1),))
train_data = batchify(corpus, args.batch_size)
model = RNNModel().to(device)
criterion = nn.NLLLoss()
hidden = model.init_hidden(args.batch_size)
model.train()
for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
    length = min(args.bptt, len(train_data) - 1 - i)
    data, targets = train_data[i:i + length], train_data[i + 1:i + 1 + length].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-args.lr)
    print("| batch {:5d} | loss {:5.2f} | ppl {:8.2f}".format(batch, loss.item(), math.exp(min(loss.item(), 20))))
