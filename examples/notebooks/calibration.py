# ---
# jupyter:
#   jupytext: {formats: "ipynb,py:percent"}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Calibrating a device from measurements
# `examples/measured.jsonl` holds SqueezeNet's operators as they were measured on the CPU of `examples/cpu.yaml`: two
# shared cores with other work beside them. `iossim profile` writes such a file on your machine.

# %%
from pathlib import Path

import pandas

import iossim
from iossim.calibration.calibrate import DeviceData, Protocol, calibrate
from iossim.measurements.measurement_set import read_measurements

examples = next(each for each in (Path(".."), Path("examples")) if (each / "measured.jsonl").is_file())
device = iossim.device(str(examples / "cpu.yaml"))
measured = read_measurements(examples / "measured.jsonl", device.name)
measured.header.source

# %% [markdown]
# ## What was measured

# %%
times = pandas.DataFrame({"op": each.operator.kind, "measured_us": each.latency_us} for each in measured.measurements)
times.groupby("op").measured_us.describe()

# %% [markdown]
# ## The fit
# Three in ten shapes are held out, by a hash of the shape: no parameter sees them. The errors below are theirs.

# %%
found = calibrate([DeviceData(device, (measured,))], Protocol(date="2026-11-22", folds=0))
provenance = found.profile.provenance
pandas.DataFrame(error.model_dump() for error in provenance.held_out)

# %% [markdown]
# Parameters that the measurements do not determine keep their values, and intervals widen accordingly.

# %%
provenance.unidentified

# %% [markdown]
# ## The calibrated device prices a network, with an interval

# %%
schedule = iossim.optimize("squeezenet", found.profile)
low_us, high_us = schedule.interval_us
f"{schedule.latency_us / 1e3:.1f} ms, nine in ten measurements from {low_us / 1e3:.1f} to {high_us / 1e3:.1f} ms"
