"""Reading a model that was exported for one batch for another.

Computing each image as the exported model would makes every value as it was, but with the leading dimension scaled.
That is checked for every op. A reshape to a fixed shape whose input carries the batch in front acts on each image alone,
whatever of the image comes in front with the batch, so that its shape may be scaled too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.base.errors import ModelError
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Rebatching:
    """``declared`` is the graph as the file has it, for batch ``before``; it is now read for batch ``after``."""

    declared: Graph
    before: int
    after: int

    def adapted(self, output: str) -> Node | None:
        """The node that makes ``output``, if it fixes that it has a multiple of ``before`` in front, made one of ``after``.

        Like :meth:`keeps_batch` it is asked only for values that depend on the inputs.
        """
        node, expected = self.declared.producer.get(output), self._expected(output)
        if node is None or expected is None:
            return None
        op = node.op.making(expected.shape)
        return None if op is None else replace(node, op=op)

    def keeps_batch(self, op: Op, output: str, made: TensorType, first_varies: bool) -> bool:
        """Whether an op that now makes ``made`` still treats each image as it did.

        ``first_varies`` tells whether its first input depends on what the network is given.
        """
        return not op.mixes_images(first_varies) and made == self._expected(output)

    def refusal(self, where: str) -> ModelError:
        """The error that a node, ``where`` it is, cannot be read for the other batch."""
        return ModelError(
            f"{where} does not keep the batch in front, so that batch {self.before} of the file cannot become "
            f"{self.after}; export the model for the batch that you want, or with an open one"
        )

    def _expected(self, value: str) -> TensorType | None:
        """The type that a value must have now; None if it cannot carry the batch in front."""
        old = self.declared.types.get(value)
        if old is None or not old.shape or old.shape[0] % self.before:
            return None
        return replace(old, shape=(old.shape[0] // self.before * self.after, *old.shape[1:]))
