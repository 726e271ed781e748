"""What does not work, each in its own way."""

from __future__ import annotations


def create(*arguments: object) -> object:
    raise RuntimeError("the licence server\nis down")


def profile() -> str:
    return "name: broken-gpu\ntitle: no facts\n"


def rules() -> str:
    return "rule: a\nsource: [y]\noutputs: {y: x}\n"


def output(*arguments: object) -> object:
    return 7
