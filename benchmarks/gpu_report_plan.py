"""The sections of ``gpu_report.py``: their order, which is that of what they are worth, and their shares of the time.

What would be missed most comes first: that a convolution runs at all and computes what it should, what launches cost,
and two networks whose outputs were looked at. Machines may be taken away; what is last may never be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

#: What is computed in, in the order of what is worth most: what people run, what the paper ran, the two others.
DTYPES = ("bf16", "fp32", "fp16", "tf32")
#: What a section computes in that does not say.
PLAIN_DTYPE = "fp32"

#: Small ones first, and the paper's two large ones last, whose plans take longest to build.
MODELS = ("squeezenet", "inception_v3", "resnet50", "bert_layer", "moe_layer", "randwire", "nasnet_a")
#: Those whose units are what a library computes in one call: attention, above all.
FUSED_UNITS = ("bert_layer",)
#: Each kind of section with its share of the time; those with models are one section a model.
SHARES = {
    "first": 15,
    "costs": 20,
    "graph": 20,
    "profile": 120,
    "baselines": 40,
    "tests": 60,
    "warm-up": 40,
    "networks": 45,
    "compile": 50,
    "autotune": 60,
    "prediction": 10,
}
#: What a section needs at least, in seconds: a process that begins cold imports, compiles kernels and has cuDNN build
#: plans for 10 s and more before it measures anything. So the first sections get what they need, and the last may get none.
NEEDS_S = {
    "first": 25,
    "costs": 15,
    "graph": 25,
    "profile": 40,
    "baselines": 30,
    "tests": 45,
    "warm-up": 30,
    "networks": 45,
    "compile": 60,
    "autotune": 150,
    "prediction": 10,
}
#: The most that a section may take, in seconds, where it might take all there is: max-autotune has taken 600.
MOST_S = {"autotune": 240}
#: Of how many of the first models there is a section of a kind, in each of the first precisions.
OF_MODELS: dict[str, tuple[int, ...]] = {"graph": (7, 2, 2, 2), "networks": (7, 4), "compile": (4,), "autotune": (4,)}
#: Of which precisions there is a section of a kind that takes all models: so many of the first.
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
    """The kind of a section: ``graph`` of ``graph/squeezenet@bf16``, ``profile`` of ``profile@bf16``."""
    return name.partition("/")[0].partition("@")[0]


def model_and_dtype(name: str) -> tuple[str, str]:
    """What a section's name says besides its kind: the model, empty where there is none, and what it computes in."""
    rest, marked, dtype = name.rpartition("@")
    named, computed = (rest, dtype) if marked and dtype in DTYPES else (name, PLAIN_DTYPE)
    return named.partition("/")[2], computed


def chosen_sections(text: str, models: Sequence[str], dtypes: Sequence[str] = (PLAIN_DTYPE,)) -> list[str]:
    """The sections that ``--sections`` names, a kind for all of its models. Raises ValueError for an unknown one."""
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
    """The share of a section in the time that is left, with those after it; what it needs at least, if that is there."""
    kind = kind_of(section)
    of_all_s = left_s * SHARES[kind] / (SHARES[kind] + sum(SHARES[kind_of(name)] for name in later))
    return min(left_s, MOST_S.get(kind, left_s), max(of_all_s, NEEDS_S[kind]))
