import argparse

import torch
from torch.utils.data import DataLoader

from .data import Utterances, collate
from .model import ConformerCTC


def noam(step, dim, warmup=10000):
    step += 1
    return dim**-0.5 * min(step**-0.5, step * warmup**-1.5)


def main():
    parser = argparse.ArgumentParser(prog="asr.train")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=1600)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--updates", type=int, default=4)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocab = 1024
    model = ConformerCTC(dim=args.dim, layers=args.layers, heads=args.dim // 64, vocab=vocab).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: noam(s, args.dim))
    ctc = torch.nn.CTCLoss(blank=0, zero_infinity=True)
    data = Utterances(args.updates * args.batch, args.frames, vocab)
    for mel, frames, text, letters in DataLoader(data, args.batch, collate_fn=collate):
        mel, frames, text, letters = (t.to(device) for t in (mel, frames, text, letters))
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            log_probs, steps = model(mel, frames)
        loss = ctc(log_probs.float().transpose(0, 1), text, steps, letters)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        print(f"loss {loss.item():.3f}  lr {schedule.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
