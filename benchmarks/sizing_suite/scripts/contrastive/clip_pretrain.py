"""Picture and caption encoders trained together; features of micro-batches are cached so that the batch can be large."""
import argparse

import timm
import torch
import torch.nn.functional as F
from torch import nn


class TextEncoder(nn.Module):
    def __init__(self, vocab, length, width, layers, heads, out):
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.projection = nn.Linear(width, out, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text):
        x = self.transformer(self.token(text) + self.position, mask=self.mask, is_causal=True)
        return self.projection(x[:, -1])


class CLIP(nn.Module):
    def __init__(self, image_model, dim=512, length=77):
        super().__init__()
        self.visual = timm.create_model(image_model, num_classes=dim)
        self.text = TextEncoder(49408, length, 512, 12, 8, dim)
        self.logit_scale = nn.Parameter(torch.tensor(2.659))

    def forward(self, image, text):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.text(text), dim=-1)


def contrastive(image, text, scale):
    logits = scale.exp() * image @ text.T
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def cached_step(model, images, texts, micro, autocast):
    """GradCache: features without graph, gradients of the features, then each micro-batch with its share."""
    with torch.no_grad(), autocast():
        parts = [model(i, t) for i, t in zip(images.split(micro), texts.split(micro))]
    image, text = (torch.cat(side).float().requires_grad_() for side in zip(*parts))
    loss = contrastive(image, text, model.logit_scale)
    loss.backward()
    for i, t, gi, gt in zip(images.split(micro), texts.split(micro), image.grad.split(micro), text.grad.split(micro)):
        with autocast():
            fi, ft = model(i, t)
        torch.autograd.backward([fi.float(), ft.float()], [gi, gt])
    return loss


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--image-model", default="vit_small_patch16_224")
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--micro", type=int, default=0, help="0: the whole batch at once")
    ap.add_argument("--steps", type=int, default=4)
    cfg = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = CLIP(cfg.image_model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)

    def autocast():
        return torch.autocast(device, dtype=torch.bfloat16)

    for step in range(cfg.steps):
        images = torch.randn(cfg.batch, 3, 224, 224, device=device)
        texts = torch.randint(49408, (cfg.batch, 77), device=device)
        optimizer.zero_grad()
        if cfg.micro:
            loss = cached_step(model, images, texts, cfg.micro, autocast)
        else:
            with autocast():
                image, text = model(images, texts)
            loss = contrastive(image.float(), text.float(), model.logit_scale)
            loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        print(step, loss.item())
