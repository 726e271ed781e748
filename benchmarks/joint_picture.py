"""Picture of the gains of joint searches over their ingredients: a row for each network and device of the table.

    python -m benchmarks.joint_picture

draws docs/joint_search.svg of what ``python -m benchmarks.result_tables joint-search`` wrote.
"""

from __future__ import annotations

import csv
import re

from benchmarks.kept_runs import ROOT
from evidence.guide.drawing import Drawing

TABLE, PICTURE = ROOT / "evidence" / "quoted" / "tables" / "joint-search.csv", ROOT / "docs" / "joint_search.svg"
#: Networks whose searches ended by themselves, in the order of the table.
ENDED = ("squeezenet", "resnet50", "bert_layer", "moe_layer", "alexnet", "resnet18")
_LEFT, _RIGHT, _TOP, _ROW, _LEAST = 150, 424, 78, 22, 0.3
_ALONE, _IN_TURN, _JOINTLY = "#8b939c", "#e69f00", "#0072b2"


def joint_gains() -> str:
    """Latencies by the best ingredient alone, by the best two in turn, and jointly, each over that as given.

    A percentage is that by which the joint search is below two in turn, from 1% on.
    """
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["network"] in ENDED]
    picture = Drawing("Latency by one ingredient, by two in turn and jointly, over that of the network as given")
    bottom = _TOP + _ROW * len(rows)
    picture.text(10, 24, "Latency over that of the network as given", "bold")
    for x, colour, words in (
        (10, _ALONE, "best alone"),
        (120, _IN_TURN, "best two in turn"),
        (268, _JOINTLY, "jointly"),
    ):
        _mark(picture, x + 5, 44, colour)
        picture.text(x + 16, 49, words, "soft")
    for tenths in range(4, 11, 2):
        at = _place(tenths / 10)
        picture.line(at, _TOP - 8, at, bottom, "faint")
        picture.text(at, bottom + 18, f"{tenths / 10:.1f}", "middle soft")
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number + 6
        given, (in_turn, *_), jointly = float(row["given"]), _numbers(row["two in turn"]), float(row["jointly"])
        name = row["network"].removesuffix("_layer")
        picture.text(_LEFT - 14, y + 5, f"{name}, {row['device'].partition(',')[0]}", "end")
        picture.line(_place(jointly / given), y, _place(1), y)
        for latency_ms, colour in ((min(_numbers(row["alone"])), _ALONE), (in_turn, _IN_TURN), (jointly, _JOINTLY)):
            _mark(picture, _place(latency_ms / given), y, colour)
        if jointly < 0.99 * in_turn:
            picture.text(_place(jointly / given) - 10, y + 5, f"-{1 - jointly / in_turn:.0%}", "end bold halo")
    return picture.svg(bottom + 30)


def _numbers(words: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.\d+", words)]


def _place(share: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * (share - _LEAST) / (1 - _LEAST)


def _mark(picture: Drawing, x: float, y: float, colour: str) -> None:
    picture.box(x - 5, y - 5, 10, 10, colour, rx="5")


if __name__ == "__main__":
    PICTURE.write_text(joint_gains(), encoding="utf-8")
