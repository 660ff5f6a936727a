"""Fine-tuning of a Whisper-shaped model with transformers in a plain loop; encoder may be frozen."""
import argparse

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

SIZES = {"nano": (64, 2, 2), "tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--freeze-encoder", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    a = parser.parse_args()
    dim, layers, heads = SIZES[a.size]
    positions = a.seconds * 50
    config = WhisperConfig(d_model=dim, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
                           decoder_attention_heads=heads, encoder_ffn_dim=4 * dim, decoder_ffn_dim=4 * dim,
                           max_source_positions=positions, use_cache=False)
    model = WhisperForConditionalGeneration(config)
    if a.freeze_encoder:
        model.freeze_encoder()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    scaler = torch.amp.GradScaler(device, enabled=a.fp16)
    for step in range(a.steps):
        features = torch.randn(a.batch, config.num_mel_bins, 2 * positions, device=device)
        labels = torch.randint(0, 50000, (a.batch, a.tokens), device=device)
        with torch.autocast(device, torch.float16, enabled=a.fp16):
            loss = model(input_features=features, labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(step, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
