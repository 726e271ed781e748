"""Sections of ``gpu_report.py``: their order, by value, and their shares of the time.

The most valuable come first: whether a convolution runs and computes correctly, the costs of launches, and two networks
with checked outputs. Machines may be taken away; the last sections may never run.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Precisions in order of value: the one in common use, the paper's, the two others.
DTYPES = ("bf16", "fp32", "fp16", "tf32")
#: Precision of a section without one in its name.
PLAIN_DTYPE = "fp32"

#: Small networks come first, and the paper's two large ones last, whose plans take longest to build.
MODELS = ("squeezenet", "inception_v3", "resnet50", "bert_layer", "moe_layer", "randwire", "nasnet_a")
#: Networks whose units a library computes in one call: attention, above all.
FUSED_UNITS = ("bert_layer",)
#: Share of each kind of section in the time; those with models are one section per model.
SHARES = {
    "first": 15,
    "costs": 20,
    "graph": 20,
    "profile": 120,
    "baselines": 40,
    "tests": 60,
    "warm-up": 40,
    "networks": 45,
    "company": 20,
    "compile": 50,
    "modules": 120,
    "autotune": 60,
    "prediction": 10,
}
#: Least seconds of a section: a cold process imports, compiles kernels and has cuDNN build plans for 10 s and more
#: before it measures anything. So the first sections get what they need, and the last may get none.
NEEDS_S = {
    "first": 25,
    "costs": 15,
    "graph": 25,
    "profile": 40,
    "baselines": 30,
    "tests": 45,
    "warm-up": 30,
    "networks": 45,
    "company": 40,
    "compile": 60,
    "modules": 100,
    "autotune": 150,
    "prediction": 10,
}
#: Most seconds of a section that might take all of the time: max-autotune has taken 600.
MOST_S = {"autotune": 240}
#: Number of first models with a section of a kind, in each of the first precisions.
OF_MODELS: dict[str, tuple[int, ...]] = {
    "graph": (7, 2, 2, 2),
    "networks": (7, 4),
    "company": (7,),
    "compile": (4,),
    "autotune": (4,),
}
#: Number of first precisions with a section of a kind that takes all models.
OF_DTYPES = {"profile": 2}


def section_names(models: Sequence[str], dtypes: Sequence[str] = (PLAIN_DTYPE,)) -> list[str]:
    """All sections in order; one of another precision than fp32 is named after it: ``graph/squeezenet@bf16``."""
    names: list[str] = []
    for kind in SHARES:
        if kind not in OF_MODELS:
            most = OF_DTYPES.get(kind)
            names += [_of_dtype(kind, dtype) for dtype in dtypes[:most]] if most else [kind]
            continue
        names += [
            _of_dtype(f"{kind}/{model}", dtype)
            for dtype, most in zip(dtypes, OF_MODELS[kind], strict=False)
            for model in models[:most]
        ]
    return names


def _of_dtype(name: str, dtype: str) -> str:
    return name if dtype == PLAIN_DTYPE else f"{name}@{dtype}"


def kind_of(name: str) -> str:
    """Kind of a section: ``graph`` of ``graph/squeezenet@bf16``, ``profile`` of ``profile@bf16``."""
    return name.partition("/")[0].partition("@")[0]


def model_and_dtype(name: str) -> tuple[str, str]:
    """Model and precision in a section's name, the model empty if there is none."""
    rest, marked, dtype = name.rpartition("@")
    named, computed = (rest, dtype) if marked and dtype in DTYPES else (name, PLAIN_DTYPE)
    return named.partition("/")[2], computed


def chosen_sections(text: str, models: Sequence[str], dtypes: Sequence[str] = (PLAIN_DTYPE,)) -> list[str]:
    """Sections named by ``--sections``, where a kind means all of its models. Raises ValueError for an unknown one."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"--dtypes {dtype!r} is not known; known: {', '.join(DTYPES)}")
    known = section_names(models, dtypes)
    wanted = [name for name in text.split(",") if name]
    for name in wanted:
        if name not in known and name not in SHARES:
            raise ValueError(f"--sections {name!r} is not known; known: {', '.join([*SHARES, *known])}")
    return [name for name in known if not wanted or name in wanted or kind_of(name) in wanted]


def time_for(section: str, later: Sequence[str], left_s: float) -> float:
    """Share of a section in the remaining time, with those after it; at least its minimum, if that remains."""
    kind = kind_of(section)
    of_all_s = left_s * SHARES[kind] / (SHARES[kind] + sum(SHARES[kind_of(name)] for name in later))
    return min(left_s, MOST_S.get(kind, left_s), max(of_all_s, NEEDS_S[kind]))
