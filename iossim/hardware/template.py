"""A device profile to fill in: every fact with its meaning, its unit, and where to find it."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.names import check_name, own_names
from iossim.hardware.write import check_writable

_TEMPLATE = """\
# A GPU for iossim. Write the facts where it says FILL_IN, then ask whether they can be right:
#     iossim devices validate {file}
# and use it: iossim compare squeezenet --device {file}
# In the folder {folder} it is found by its name: --device {name}
#
# Facts are enough. What a simulator needs besides (how near kernels come to the peak, what a launch costs) is taken
# from devices that were measured; 'iossim calibrate' replaces it by what your own measurements say.
name: {name}
kind: gpu
title: FILL_IN  # as the vendor calls it
# The documents that the facts are from, each under a key of your choice.
sources:
  datasheet: FILL_IN  # title of the document; 'rates halved where it prints sparse ones', if so
datasheet:
  # One of {capabilities}.
  compute_capability: {{value: "FILL_IN", source: datasheet}}
  # Streaming multiprocessors that are enabled, and the fp32 lanes ("CUDA cores") of each.
  sm_count: {{value: FILL_IN, source: datasheet}}
  fp32_lanes_per_sm: {{value: FILL_IN, source: datasheet}}
  # In GHz: 1.59, not 1590. The clock that it keeps in your runs, if you lock it to another than the boost clock.
  boost_clock_ghz: {{value: FILL_IN, source: datasheet}}
  # In GB/s (10^9 bytes), and in bytes.
  dram_bandwidth_gbps: {{value: FILL_IN, source: datasheet}}
  dram_bytes: {{value: FILL_IN, source: datasheet}}
  # Optional, to check the bandwidth by: width of the bus, and what each pin carries (GDDR6: 14 to 20 Gbit/s).
  # dram_bus_bits: {{value: FILL_IN, source: datasheet}}
  # dram_pin_gbps: {{value: FILL_IN, source: datasheet}}
  # In bytes: 4 MiB are 4194304.
  l2_bytes: {{value: FILL_IN, source: datasheet}}
  # The board's limit in watts.
  board_power_w: {{value: FILL_IN, source: datasheet}}
  # The printed fp32 peak, without tensor cores: SMs x lanes x clock x 2 must make it.
  fp32_tflops: {{value: FILL_IN, source: datasheet}}
  # Optional: dense rates of matrix products at other precisions; those left out are computed at the fp32 rate. Data
  # sheets often print the rate with sparsity, which is twice that.
  # reduced_precision_tflops:
  #   value: {{tf32: FILL_IN, fp16: FILL_IN, bf16: FILL_IN, int8: FILL_IN}}
  #   source: datasheet
"""


def write_template(name: str, path: Path, folder: Path) -> None:
    """Write the template of a device ``name`` to ``path``, which must not exist yet; ``folder`` is the user's.

    Raises DeviceError for an invalid name, or that of a shipped device, and if the file cannot be written.
    """
    check_name(name)
    if name in own_names():
        raise DeviceError(f"device name {name!r} is that of a device that iossim has; choose another name")
    text = _TEMPLATE.format(name=name, file=path, folder=folder, capabilities=", ".join(LIMITS))
    try:
        if path.absolute().parent == folder.absolute():
            # The template names it, and it does not exist before the first profile does.
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {folder}: {error.strerror}; choose another file") from None
    check_writable(path)
    try:
        # 'x' refuses an existing file, even one created meanwhile.
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise DeviceError(f"device profile {path} is there already; choose another file with `out`") from None
    except OSError as error:
        raise DeviceError(f"cannot write device profile {path}: {error.strerror}; choose another file") from None
