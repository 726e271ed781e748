"""Reading a model that was exported for one batch for another.

Computing each image as the exported model would makes every value as it was, but with the leading dimension scaled.
That is checked for every op. A reshape to a fixed ``[batch, ...]`` whose input carries the batch in front acts on each
image alone, so that its shape may be scaled too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.split import Split
from iossim.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Rebatching:
    """``declared`` is the graph as the file has it, for batch ``before``; it is now read for batch ``after``."""

    declared: Graph
    before: int
    after: int

    def adapted(self, output: str) -> Node | None:
        """The node that makes ``output``, if it is a reshape to ``[before, ...]``, made one to ``[after, ...]``.

        Like :meth:`keeps_batch` it is asked only for values that depend on the inputs.
        """
        node, expected = self.declared.producer.get(output), self._expected(output)
        if node is None or expected is None or not isinstance(node.op, Reshape):
            return None
        fixes_batch = self.declared.types[output].shape[0] == self.before
        return replace(node, op=Reshape(expected.shape)) if fixes_batch else None

    def keeps_batch(self, op: Op, output: str, made: TensorType) -> bool:
        """Whether an op that now makes ``made`` still treats each image as it did."""
        mixes_images = isinstance(op, Foreign) or (isinstance(op, Concat | Split | Softmax) and op.axis == 0)
        return not mixes_images and made == self._expected(output)

    def _expected(self, value: str) -> TensorType | None:
        """The type that a value must have now; None if it cannot carry the batch in front."""
        old = self.declared.types.get(value)
        if old is None or not old.shape or old.shape[0] % self.before:
            return None
        return replace(old, shape=(old.shape[0] // self.before * self.after, *old.shape[1:]))
