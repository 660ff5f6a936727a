"""A Lightning module with a validation loop."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(2048, 512), torch.randint(0, 10, (2048,)))
trainer = L.Trainer(max_epochs=3, accelerator="gpu", devices=1, precision="16-mixed", accumulate_grad_batches=2)
trainer.fit(Lit(), DataLoader(data, 64, shuffle=True, num_workers=2), DataLoader(data, 64))
