# ---
# jupyter:
#   jupytext: {formats: "ipynb,py:percent"}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # From a network to a schedule
# Open this file as a notebook with jupytext (`pip install jupytext`), or run it as plain Python.

# %%
import iossim

network = iossim.load("squeezenet", batch=1)  # or the path of an ONNX file, or iossim.load(module, (x,)) for PyTorch
network

# %% [markdown]
# Each box is a *unit*: a fusion of operators that is scheduled as a whole. `to_dataframe()` has a row for each.

# %%
network.to_dataframe().groupby("kind").macs.agg(["count", "sum"])

# %% [markdown]
# ## Which scheduler, and how much is there to win?

# %%
comparison = iossim.compare(network, "v100-sxm2")
comparison

# %%
comparison.plot()

# %% [markdown]
# ## The schedule
# A lane for each stream, a bar for each kernel, a band for each stage. The table below the picture lists the stages.

# %%
best = comparison.best
best

# %%
best.to_dataframe().nlargest(5, "latency_us")

# %% [markdown]
# ## What limits each stage, and what another choice would cost

# %%
explanation = iossim.explain(best, network)
explanation

# %% [markdown]
# ## The same schedule on another GPU, and what a schedule of its own would gain

# %%
elsewhere = iossim.simulate(best, "t4", network=network)
own = iossim.optimize(network, "t4")
assert own.latency_us <= elsewhere.latency_us * (1 + 1e-9)
{"the V100's schedule, ms": round(elsewhere.latency_us / 1e3, 3), "its own, ms": round(own.latency_us / 1e3, 3)}
