"""Fine-tune any timm model. Options are the fields of Config: `finetune_timm.py model=vit_base_patch16_224 batch=64`."""
import sys
from dataclasses import dataclass, fields

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV2


@dataclass
class Config:
    model: str = "vit_base_patch16_224"
    batch: int = 64
    classes: int = 1000
    image: int = 0
    opt: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    drop_path: float = 0.1
    dtype: str = "bfloat16"
    checkpointing: bool = False
    ema: bool = False
    freeze_backbone: bool = False
    steps: int = 6

    @classmethod
    def from_argv(cls, argv):
        kinds = {f.name: f.type for f in fields(cls)}
        values = {}
        for item in argv:
            key, _, value = item.partition("=")
            if key not in kinds:
                raise SystemExit(f"unknown option {key}; known: {', '.join(kinds)}")
            kind = kinds[key]
            values[key] = value.lower() in ("1", "true", "yes") if kind is bool else kind(value)
        return cls(**values)


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        extra = {"img_size": cfg.image} if cfg.image else {}
        self.model = timm.create_model(cfg.model, pretrained=False, num_classes=cfg.classes,
                                       drop_path_rate=cfg.drop_path, **extra).to(self.device)
        if cfg.freeze_backbone:
            for p in self.model.parameters():
                p.requires_grad = False
            for p in self.model.get_classifier().parameters():
                p.requires_grad = True
        if cfg.checkpointing:
            self.model.set_grad_checkpointing(True)
        self.ema = ModelEmaV2(self.model, decay=0.9998) if cfg.ema else None
        self.size = timm.data.resolve_data_config({}, model=self.model)["input_size"]
        if cfg.image:
            self.size = (3, cfg.image, cfg.image)
        self.criterion = LabelSmoothingCrossEntropy(0.1)
        self.optimizer = create_optimizer_v2(self.model, opt=cfg.opt, lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.schedule, _ = create_scheduler_v2(self.optimizer, sched="cosine", num_epochs=10)
        self.losses = AverageMeter()

    def batches(self):
        for _ in range(self.cfg.steps):
            yield (torch.randn(self.cfg.batch, *self.size), torch.randint(self.cfg.classes, (self.cfg.batch,)))

    def fit(self):
        self.model.train()
        amp = self.cfg.dtype != "float32"
        dtype = getattr(torch, self.cfg.dtype)
        for step, (x, y) in enumerate(self.batches()):
            x, y = x.to(self.device), y.to(self.device)
            with torch.autocast(self.device.type, dtype=dtype if amp else torch.bfloat16, enabled=amp):
                loss = self.criterion(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update(self.model)
            self.losses.update(loss.item(), x.size(0))
            print(f"{step:4d}  loss {self.losses.val:.4f} ({self.losses.avg:.4f})")
        self.schedule.step(1)


if __name__ == "__main__":
    Trainer(Config.from_argv(sys.argv[1:])).fit()
