"""A PyTorch module: schedule it for a GPU that is not here, then run the schedule. Page: docs/tutorial/pytorch.md"""

import torch
from torch import nn

import iossim
import iossim.torch


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(64, 64, 3, padding=1)
        self.right = nn.Conv2d(64, 64, 1)

    def forward(self, x):
        return torch.cat([self.left(x).relu(), self.right(x).relu()], dim=1)


module, x = Branches().eval(), torch.randn(1, 64, 28, 28)
print(iossim.compare(iossim.load(module, (x,)), "h100-sxm"))

compiled = iossim.torch.compile(module, (x,), device="h100-sxm")
with torch.no_grad():
    difference = (compiled(x) - module(x)).abs().max().item()
print(f"outputs differ by at most {difference:.1e}")
assert difference < 1e-4
