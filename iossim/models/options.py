"""Options of :func:`iossim.load` as one value, and as text in a network's source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iossim.base.errors import ModelError, OptionError, is_count
from iossim.ir.graph import Graph
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.passes.blocks import check_max_block
from iossim.models.passes.unit_fusion import MODEL, check_policy

#: Prefix of the source of a network that was made from a PyTorch module; its class follows.
TORCH = "torch:"
#: The batch of inputs as declared in the file, since they have no common one.
DECLARED = "declared"


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Arguments of :func:`iossim.load` besides the model; most are kept as text in a network's source."""

    dtype: Precision | None = None
    graphs: str | Path | None = None
    units: str = MODEL
    max_block: int | None = None
    seed: int = 0
    passes: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    training: bool = False
    block: str | int | None = None
    static_part: bool = False
    strict: bool = False
    example_inputs: object = None
    onnx_file: Path | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and not is_count(self.batch):
            raise OptionError(f"batch {self.batch!r} is not possible: give a whole number, 1 or more")
        if not is_count(self.seed, 0):
            raise OptionError(f"seed {self.seed!r} is not possible: give a whole number, 0 or more")
        check_max_block(self.max_block)
        check_policy(self.units)  # report an unknown one before anything is read

    @property
    def precision(self) -> Precision:
        """The precision of models whose weights do not determine it."""
        return self.dtype or Precision.FP32

    def source(self, network: Network) -> ModelSource:
        """The source of ``network``, loaded with these options; its own source has the model only."""
        batch = self.batch or common_batch(network.graph)
        texts = {
            "dtype": network.precision if network.precision is not Precision.FP32 else "",
            "graphs": self.graphs or "",
            "units": self.units if self.units != MODEL else "",
            "max_block": self.max_block or "",
            "seed": self.seed or "",
            "passes": ",".join(self.passes),
            **{f"shape.{name}": "x".join(map(str, shape)) for name, shape in sorted(self.shapes.items())},
            **{f"dimension.{name}": size for name, size in sorted(self.dimensions.items())},
            "batch": "" if batch else DECLARED,
            "training": self.training or "",
            "static_part": self.static_part or "",
            "block": "" if self.block is None else self.block,
        }
        options = tuple((name, str(value)) for name, value in texts.items() if value != "")
        return ModelSource(network.source.model, batch or 1, options)


def common_batch(graph: Graph) -> int | None:
    """The leading dimension of all inputs, None if they differ."""
    leading = {graph.types[name].shape[:1] for name in graph.inputs}
    return leading.pop()[0] if len(leading) == 1 and leading != {()} else None


def no_such_file(path: str | Path) -> ModelError:
    reason = "is a folder" if os.path.isdir(path) else "does not exist"
    return ModelError(f"model file {str(path)!r} {reason}; give an ONNX file, or a model of the zoo by name")
