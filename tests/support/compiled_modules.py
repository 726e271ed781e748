"""Modules of PyTorch that tests compile."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Two branches of one input, their sum and the first; batch norms have statistics of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 1))
        nn.init.uniform_(self.left[1].running_mean)

    def forward(self, image: Tensor, scaled: bool = False) -> dict[str, Tensor]:
        left, right = self.left(image), self.right(image)
        return {"sum": left + right, "left": left * 2 if scaled else left}


def branches() -> tuple[Branches, Tensor]:
    torch.manual_seed(0)
    return Branches().eval(), torch.rand(2, 3, 12, 12)


def assert_agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Returning(nn.Module):
    """Computes any function of its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


X = torch.arange(8.0).view(2, 4)


@torch.library.custom_op("iossim_tests::mixed", mutates_args=())
def mixed(x: Tensor, others: list[Tensor], factor: float, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x + sum(others) * factor, x.sum(-1) if bias is None else bias + 1


@mixed.register_fake
def _(x: Tensor, others: list[Tensor], factor: float, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1])
