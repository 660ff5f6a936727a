# Summarisation with T5, a plain loop around the transformers model. T5 has no bias and learns with Adafactor.
import argparse
import time

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import get_constant_schedule_with_warmup

SIZES = {  # d_model, d_ff, layers, heads, d_kv
    "mini": (64, 128, 2, 2, 32),
    "small": (512, 2048, 6, 8, 64),
    "base": (768, 3072, 12, 12, 64),
    "large": (1024, 4096, 24, 16, 64),
}

ap = argparse.ArgumentParser()
ap.add_argument("--size", default="base", choices=list(SIZES))
ap.add_argument("--bs", type=int, default=8)
ap.add_argument("--source", type=int, default=512)
ap.add_argument("--target", type=int, default=128)
ap.add_argument("--gc", action="store_true")
ap.add_argument("--n", type=int, default=4, help="optimizer steps")
a = ap.parse_args()

dev = "cuda" if torch.cuda.is_available() else "cpu"
d_model, d_ff, layers, heads, d_kv = SIZES[a.size]
cfg = T5Config(vocab_size=32128, d_model=d_model, d_ff=d_ff, num_layers=layers, num_heads=heads, d_kv=d_kv,
               decoder_start_token_id=0, pad_token_id=0)
model = T5ForConditionalGeneration(cfg).to(dev)
if a.gc:
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
model.train()
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, weight_decay=0.0)
schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=10)

for i in range(a.n):
    start = time.perf_counter()
    source = torch.randint(1, 32000, (a.bs, a.source), device=dev)
    labels = torch.randint(1, 32000, (a.bs, a.target), device=dev)
    labels[:, -8:] = -100
    with torch.autocast(dev, dtype=torch.bfloat16):
        out = model(input_ids=source, attention_mask=torch.ones_like(source), labels=labels)
    out.loss.backward()
    optimizer.step()
    schedule.step()
    model.zero_grad()
    print("step", i, "loss", round(float(out.loss), 3), "s", round(time.perf_counter() - start, 3))
