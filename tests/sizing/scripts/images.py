"""A timm loop over an image folder that is not there, with pretrained weights and torchvision's transforms."""

import sys

import timm.optim
import torch
from torchvision import datasets, transforms

model = timm.create_model(sys.argv[1], pretrained=True, num_classes=100).cuda().to(memory_format=torch.channels_last)
augment = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
data = datasets.ImageFolder("/data/imagenet/train", transform=augment)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=8, drop_last=True)
optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.05)
for _ in range(2):
    for images, labels in loader:
        images = images.cuda(non_blocking=True).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels.cuda() % 100, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
