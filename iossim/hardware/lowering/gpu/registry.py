"""Which function lowers each kind of op for GPUs; the files of ``families`` register theirs here."""

from __future__ import annotations

from iossim.hardware.lowering.target import Lower
from iossim.ir.op import KindTable

FAMILIES = KindTable[Lower]()
