# ---
# jupyter:
#   jupytext: {formats: "ipynb,py:percent"}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A study in pandas
# A study is a grid of what may vary: networks, devices, batch sizes, schedulers. Here it is written in Python; `iossim
# study run FILE.yaml` runs the same from a file, and adds a page that answers its questions.

# %%
import tempfile

import iossim
from iossim.study.axes import Device, Model
from iossim.study.question import Question
from iossim.study.scenario import Scenario

scenario = Scenario(
    name="which_gpu_for_squeezenet",
    title="Which GPU serves SqueezeNet best?",
    models=[Model(model="squeezenet")],
    devices=[Device(device=name) for name in ("t4", "v100-sxm2", "a100-sxm-40gb")],
    batch_sizes=[1, 8, 32],
    schedulers=["sequential", "ios-both"],
    questions=[Question(best="device", for_each=["batch"]), Question(metric="throughput_per_s", per="board_power_w")],
)
run = iossim.run_study(scenario, tempfile.mkdtemp(), workers=1)
run

# %% [markdown]
# ## The rows, as pandas has them

# %%
rows = run.to_dataframe()
table = rows.pivot_table(index="batch", columns=["device", "scheduler"], values="latency_ms")
table.round(3)

# %% [markdown]
# ## What scheduling gains, by device and batch size

# %%
gain = table.xs("sequential", axis=1, level=1) / table.xs("ios-both", axis=1, level=1)
assert (gain.to_numpy() >= 1 - 1e-9).all()
gain.round(2)

# %% [markdown]
# ## Images a second per watt of board power

# %%
best = rows[rows.scheduler == "ios-both"]
best.assign(per_watt=best.throughput_per_s / best.board_power_w).pivot_table(
    index="batch", columns="device", values="per_watt"
).round(1)

# %% [markdown]
# ## A figure of the study's page

# %%
run.plot()
