"""BERT pretraining (masked tokens) with 🤗 Accelerate."""
import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

MASK = 103


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--mixed_precision", default="no")
    parser.add_argument("--size", default="base", choices=["tiny", "base", "large"])
    parser.add_argument("--max_train_steps", type=int, default=4)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    return parser.parse_args()


def mask(ids, probability):
    labels = ids.clone()
    chosen = torch.rand(ids.shape) < probability
    labels[~chosen] = -100
    ids = ids.clone()
    ids[chosen] = MASK
    return ids, labels


def main():
    args = parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision,
                              gradient_accumulation_steps=args.gradient_accumulation_steps)
    sizes = {"tiny": (128, 2, 2), "base": (768, 12, 12), "large": (1024, 24, 16)}
    hidden, layers, heads = sizes[args.size]
    config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * hidden, max_position_embeddings=max(512, args.max_seq_length))
    model = BertForMaskedLM(config)
    no_decay = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-5)
    micro_steps = args.max_train_steps * args.gradient_accumulation_steps
    ids = torch.randint(1000, config.vocab_size, (micro_steps * args.per_device_train_batch_size, args.max_seq_length))
    loader = DataLoader(TensorDataset(ids), args.per_device_train_batch_size, shuffle=True,
                        collate_fn=lambda rows: mask(torch.stack([row[0] for row in rows]), args.mlm_probability))
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, args.max_train_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
    model.train()
    for input_ids, labels in loader:
        with accelerator.accumulate(model):
            outputs = model(input_ids=input_ids, labels=labels)
            accelerator.backward(outputs.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            progress.update(1)
            progress.set_description(f"loss {outputs.loss.item():.3f}")
    accelerator.print("done")


if __name__ == "__main__":
    main()
