"""Fit of fused attention to CUDA graphs of an H100 and an H200: the numbers of ``hardware.parameters``.

Four parameters for both boards, fitted as in ``graph_products``, to one in three of the steady rows that are not held
out. ``python -m evidence.profiles.graph_attention`` prints them in half a minute.
"""

from __future__ import annotations

from evidence.data.data_sets import read_measurement_sets, shared_data
from evidence.data.formats.graph_attention import steady
from evidence.profiles.graph_products import fit
from iossim.hardware.fits import FittedParameter, ParameterSpace

SPACE = ParameterSpace(
    (
        FittedParameter("attention_efficiency", 0.3, 1.0),
        FittedParameter("attention_overlap_norm", 1.0, 10.0),
        FittedParameter("attention_prologue_clocks", 200.0, 20_000.0, is_logarithmic=True),
        FittedParameter("attention_ramp_us", 0.0, 10.0),
    )
)
TABLE = "graph_kernels/graph_attention_bf16.csv"


def main() -> None:
    """Print the fit."""
    found = fit([steady(one) for one in read_measurement_sets(shared_data() / TABLE)], SPACE)
    print(", ".join(f"{name} {value:.4g}" for name, value in found.values.items()))
    print("held out:", ", ".join(f"{name} {100 * error:.1f}%" for name, error in found.held_out.items()))


if __name__ == "__main__":
    main()
