"""Networks stored in another type than they were built in."""

from dataclasses import replace

from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.partition import retype


def stored_in(network: Network, precision: Precision) -> Network:
    """The same units of the same graph, with all floating-point values stored as the precision stores them."""
    return replace(network, graph=retype(network.graph, precision.storage), precision=precision)
