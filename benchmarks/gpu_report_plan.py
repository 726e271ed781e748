"""The sections of ``gpu_report.py``: their order, which is that of what they are worth, and their shares of the time.

What would be missed most comes first: that a convolution runs at all and computes what it should, what launches cost,
and two networks whose outputs were looked at. Machines may be taken away; what is last may never be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The paper's networks, small ones first.
MODELS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
#: Each kind of section with its share of the time; those with models are one section a model.
SHARES = {
    "first": 15,
    "costs": 20,
    "graph": 30,
    "profile": 120,
    "baselines": 40,
    "tests": 60,
    "warm-up": 40,
    "networks": 45,
    "compile": 50,
    "prediction": 10,
}
#: Of which models there is a section of a kind: so many of the first.
OF_MODELS: dict[str, int | None] = {"graph": 2, "networks": None, "compile": None}


def section_names(models: Sequence[str]) -> list[str]:
    """All sections in order."""
    names: list[str] = []
    for kind in SHARES:
        names += [f"{kind}/{model}" for model in models[: OF_MODELS[kind]]] if kind in OF_MODELS else [kind]
    return names


def chosen_sections(text: str, models: Sequence[str]) -> list[str]:
    """The sections that ``--sections`` names, a kind for all of its models. Raises ValueError for an unknown one."""
    known = section_names(models)
    wanted = [name for name in text.split(",") if name]
    for name in wanted:
        if name not in known and name not in SHARES:
            raise ValueError(f"--sections {name!r} is not known; known: {', '.join([*SHARES, *known])}")
    return [name for name in known if not wanted or name in wanted or name.partition("/")[0] in wanted]


def time_for(section: str, later: Sequence[str], left_s: float) -> float:
    """The share of a section in the time that is left, with those after it."""
    share = SHARES[section.partition("/")[0]]
    return left_s * share / (share + sum(SHARES[name.partition("/")[0]] for name in later))
