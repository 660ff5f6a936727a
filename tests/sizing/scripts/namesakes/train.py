"""Its modules have the probe's names."""

import run
import session
import settings
import stream
import torch
import torch_utils
import tracer

import data
import models

for module in (data, models, run, session, settings, stream, torch_utils, tracer):
    assert module.VALUE == "the script's own", module
assert __name__ == "__main__"
torch.nn.Linear(4, 4).cuda()(torch.zeros(1, 4, device="cuda")).sum().backward()
