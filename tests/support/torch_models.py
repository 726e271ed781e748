"""Models as people write them in PyTorch, small and with seeded weights: eight families, and the inputs to export them with.

All are in eval mode. Batch norms have statistics of their own, so that folding them wrongly changes the outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from iossim.backends.torch_cuda.program import input_tensors, torch_module
from iossim.backends.torch_cuda.tensors import arithmetic, to_array
from iossim.ir.network import Network
from iossim.ir.op import Array


def torch_outputs(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs by name, computed eagerly by PyTorch on the CPU: an oracle."""
    with arithmetic(network.precision):
        made = torch_module(network.graph)(*input_tensors(network.graph, inputs, "cpu"))
    return {name: to_array(tensor) for name, tensor in zip(network.graph.outputs, made, strict=True)}


def conv_bn(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(filters)]


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_bn(channels, filters, 1),
            nn.ReLU(inplace=True),
            *conv_bn(filters, filters, 3, stride),
            nn.ReLU(inplace=True),
            *conv_bn(filters, 2 * filters, 1),
        )
        projected = stride > 1 or channels != 2 * filters
        self.shortcut = nn.Sequential(*conv_bn(channels, 2 * filters, 1, stride)) if projected else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Bottleneck blocks (He et al., 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks = [ResidualBlock(width, width, 1), ResidualBlock(2 * width, width, 1)]
        self.blocks = nn.Sequential(*blocks, ResidualBlock(2 * width, 2 * width, 2))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Linear(4 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.blocks(self.stem(image))), 1))


class InceptionBlock(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()

        def chain(*kernels: int | tuple[int, int]) -> nn.Sequential:
            layers: list[nn.Module] = []
            before = channels
            for kernel in kernels:
                layers += [nn.Conv2d(before, filters, kernel, padding="same", bias=False)]
                layers += [nn.BatchNorm2d(filters, eps=1e-3), nn.ReLU()]
                before = filters
            return nn.Sequential(*layers)

        self.branches = nn.ModuleList([chain(1), chain(1, 3, 3), chain(1, (1, 5), (5, 1))])
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), *chain(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([*(branch(x) for branch in self.branches), self.pooled(x)], 1)


class Inception(nn.Module):
    """Factorised branches side by side (Szegedy et al., 2016), and dropout before the classifier."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
        self.blocks = nn.Sequential(InceptionBlock(width, width), InceptionBlock(4 * width, width))
        self.classifier = nn.Linear(4 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.stem(image)).mean(dim=(2, 3))
        return torch.softmax(self.classifier(F.dropout(x, 0.5, self.training)), dim=-1)


class InvertedResidual(nn.Module):
    def __init__(
        self, channels: int, stride: int, activation: type[nn.Module], gate: Callable[[Tensor], Tensor] | None
    ) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(*conv_bn(channels, wide, 1), activation())
        self.depthwise = nn.Sequential(*conv_bn(wide, wide, 5, stride, wide), nn.ReLU6())
        self.squeeze, self.excite = (
            (nn.Conv2d(wide, channels, 1), nn.Conv2d(channels, wide, 1)) if gate else (None, None)
        )
        self.project = nn.Sequential(*conv_bn(wide, channels, 1))
        self.adds, self.gate = stride == 1, gate

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        if self.gate is not None:
            y = y * self.gate(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.project(y)
        return x + y if self.adds else y


class MobileNet(nn.Module):
    """Inverted residuals with squeeze and excitation (Howard et al., 2019), or without a ``gate`` (Sandler et al., 2018)."""

    def __init__(
        self,
        width: int = 8,
        activation: type[nn.Module] = nn.Hardswish,
        gate: Callable[[Tensor], Tensor] | None = F.hardsigmoid,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, width, 3, 2), activation())
        self.blocks = nn.Sequential(*(InvertedResidual(width, stride, activation, gate) for stride in (1, 2, 1)))
        self.classifier = nn.Sequential(nn.Linear(width, 16), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(image)).mean((2, 3)))


class UNet(nn.Module):
    """Up by a transposed convolution and by resizing, skips by concatenation, padded to fit (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(channels: int, filters: int) -> nn.Sequential:
            parts = [
                (nn.Conv2d(before, filters, 3, padding=1), norm, nn.LeakyReLU(0.1))
                for before, norm in [
                    (channels, nn.InstanceNorm2d(filters, affine=True)),
                    (filters, nn.GroupNorm(4, filters)),
                ]
            ]
            return nn.Sequential(*(layer for part in parts for layer in part))

        self.top, self.middle, self.bottom = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.after_middle, self.after_top = double(4 * width, 2 * width), double(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        top = self.top(image)
        middle = self.middle(F.max_pool2d(top, 2))
        x = self.up(self.bottom(F.avg_pool2d(middle, 2)))
        missing = [middle.shape[axis] - x.shape[axis] for axis in (3, 2)]
        x = F.pad(x, [missing[0] // 2, missing[0] - missing[0] // 2, missing[1] // 2, missing[1] - missing[1] // 2])
        x = self.after_middle(torch.cat([middle, x], dim=1))
        x = F.interpolate(x, size=top.shape[2:], mode="bilinear", align_corners=False)
        return self.head(self.after_top(torch.cat([top, x], dim=1)))


class Bert(nn.Module):
    """Embeddings, torch's own encoder layers with a padding mask, a pooler (Devlin et al., 2019): two outputs."""

    def __init__(self, size: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, size), nn.Embedding(16, size)
        self.norm = nn.LayerNorm(size, eps=1e-12)
        self.query = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.key = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.value = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * layers))
        self.inner = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(layers))
        self.pooler, self.heads, self.layers = nn.Linear(size, size), heads, layers

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        positions = torch.arange(length, device=ids.device)
        x = self.norm(self.words(ids) + self.positions(positions))
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in range(self.layers):
            q, k, v = (
                linear(x).view(batch, length, self.heads, -1).transpose(1, 2)
                for linear in (self.query[layer], self.key[layer], self.value[layer])
            )
            weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + added, dim=-1)
            mixed = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
            x = self.norms[2 * layer](x + self.out[layer](mixed))
            x = self.norms[2 * layer + 1](x + self.outer[layer](F.gelu(self.inner[layer](x))))
        return x, torch.tanh(self.pooler(x[:, 0]))


class VisionTransformer(nn.Module):
    """Patches, a class token, torch's own encoder (norm first, fused attention) (Dosovitskiy et al., 2021)."""

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, size))
        self.positions = nn.Parameter(torch.randn(1, 17, size))
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.encoder(x))[:, 0])


class Tagger(nn.Module):
    """Embeddings, a bidirectional LSTM of two layers, a GRU, scores and the best of them."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(40, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.scores = nn.Linear(hidden, 5)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.lstm(self.words(words))
        states, _ = self.gru(states)
        scores = self.scores(states)
        return F.log_softmax(scores, dim=-1), scores.argmax(-1)


class DetectionHead(nn.Module):
    """Two levels of a pyramid with three branches each, decoded boxes and the best of them, by name."""

    def __init__(self, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 4, 1), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.SiLU())
        self.branches = nn.ModuleList(
            nn.ModuleDict(
                {
                    name: nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, filters, 1))
                    for name, filters in (("box", 4), ("label", classes), ("object", 1))
                }
            )
            for _ in range(2)
        )

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        top = self.stem(image)
        boxes, scores = [], []
        for level, branches in zip((top, self.down(top)), self.branches, strict=True):
            found = {name: branch(level).flatten(2).transpose(1, 2) for name, branch in branches.items()}
            centre, size = found["box"].chunk(2, dim=-1)
            half = size.clamp(max=4.0).exp() / 2
            boxes.append(torch.cat([centre - half, centre + half], dim=-1))
            scores.append(found["label"].sigmoid() * found["object"].sigmoid())
        every, score = torch.cat(boxes, dim=1), torch.cat(scores, dim=1)
        best, place = score.amax(dim=-1).topk(5, dim=1)
        kept = torch.where(best > 0.1, best, torch.zeros_like(best))
        return {"boxes": every.gather(1, place[..., None].expand(-1, -1, 4)), "best": kept}


@dataclass(frozen=True)
class TorchModel:
    """How a module and its example inputs are made."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]

    def make(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """A module in eval mode and inputs for it, the same in every process."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.module()
            for part in module.modules():
                if isinstance(part, nn.BatchNorm2d):
                    for values in (part.running_mean, part.bias):
                        nn.init.normal_(values, 0.0, 0.2)
                    for values in (part.running_var, part.weight):
                        nn.init.uniform_(values, 0.5, 1.5)
            return module.eval(), self.inputs()


def image(batch: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, size, size),)


def sentences() -> tuple[Tensor, Tensor]:
    """Word ids, and which of them are no padding."""
    return torch.randint(0, 50, (2, 6)), (torch.arange(6) < torch.tensor([[6], [4]])).long()


MODELS: dict[str, TorchModel] = {
    "resnet": TorchModel(ResNet, image(2, 48)),
    "inception": TorchModel(Inception, image(1, 40)),
    "mobilenet": TorchModel(MobileNet, image(2, 32)),
    "unet": TorchModel(UNet, image(1, 30)),
    "bert": TorchModel(Bert, sentences),
    "vit": TorchModel(VisionTransformer, image(2, 32)),
    "lstm": TorchModel(Tagger, lambda: (torch.randint(0, 40, (3, 7)),)),
    "detection": TorchModel(DetectionHead, image(1, 32)),
}
