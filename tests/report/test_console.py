"""Tables at the width of a terminal, without colour."""

from dataclasses import replace
from io import StringIO

import pytest
from graph_builders import builder_with
from random_networks import make_schedule, make_stage, sequential_schedule
from rich.console import Console
from rich.table import Table

from iossim.base.tables import Column, described_table, records_table, spelled
from iossim.report.schedule_tables import repeats, schedule_table
from iossim.schedule.schedule import BlockSchedule
from iossim.tasks.comparison import TIE, ComparisonRow, comparison_table


def lines(table: Table, width: int = 80) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


ROWS = [
    ComparisonRow("sequential", 6470.1, 1.0, 119, 1, 0.012, 3900.0, 6700.0),
    ComparisonRow("greedy", 5470.1, 1.18, 40, 6, 0.013, 3900.0),
    ComparisonRow("ios-merge", 6170.1, 1.05, 110, 1, 0.512, 4100.0),
    ComparisonRow("ios-parallel", 4270.1, 1.515, 39, 6, 1.213, 3900.0),
    ComparisonRow("ios-both", 4203.4, 1.54, 38, 6, 1.3, 3850.0, 4100.0),
]


def test_the_comparison_of_five_schedulers_at_80_columns() -> None:
    assert lines(comparison_table(ROWS)) == [
        "             latency gain                search bound  gap published error",
        "scheduler         ms    x stages streams      s    ms    %        ms     %",
        "─" * 74,
        "sequential     6.470 1.00    119       1   0.01 3.900 65.9      6.70  -3.4",
        "greedy         5.470 1.18     40       6   0.01 3.900 40.3         -     -",
        "ios-merge      6.170 1.05    110       1   0.51 4.100 50.5         -     -",
        "ios-parallel   4.270 1.51     39       6   1.21 3.900  9.5         -     -",
        "ios-both       4.203 1.54     38       6   1.30 3.850  9.2      4.10   2.5",
    ]


def test_errors_stand_beside_those_that_leave_the_network_out() -> None:
    told = {"published_us": 4110.0, "left_out_us": 3700.0}
    rows = [replace(ROWS[3], ties=("ios-both",), **told), replace(ROWS[4], ties=("ios-parallel",), **told)]
    assert lines(comparison_table(rows)) == [
        "              latency gain                search bound gap published error   LOO",
        "scheduler          ms    x stages streams      s    ms   %        ms     %     %",
        "─" * 80,
        "ios-parallel≈   4.270 1.51     39       6   1.21 3.900 9.5      4.11   3.9 -10.0",
        "ios-both        4.203 1.54     38       6   1.30 3.850 9.2      4.11   2.3 -10.0",
    ]


def test_ties_with_the_best_are_marked() -> None:
    rows = [
        ComparisonRow("slow", 3.0, 1.0, 2, 1, 0.1, ties=("unrelated",)),
        ComparisonRow("near", 1.02, 2.9, 2, 1, 0.1, ties=("best",)),
        ComparisonRow("best", 1.0, 3.0, 2, 1, 0.1, ties=("near",)),
    ]
    first = [line.split()[0] for line in lines(comparison_table(rows))[-3:]]
    assert first == ["slow", f"near{TIE}", "best"]


def test_columns_without_a_figure_are_left_out() -> None:
    rows = [ComparisonRow("sequential", 6470.1, 1.0, 119, 1, 0.012)]
    expected = ["           latency gain                search", "scheduler       ms    x stages streams      s"]
    assert lines(comparison_table(rows))[:2] == expected


def test_a_schedule_stage_by_stage() -> None:
    b, x = builder_with("small", x=(1, 1, 4, 4))
    with b.block("main"):
        for name in "abcd":
            b.conv(x, 1, name=name)
    network = b.network(list("abcd"))
    stages = [make_stage([["a"], ["b"]], latency_us=12.25), make_stage([["c", "d"]], "merge", 1234.5)]
    schedule = make_schedule(network, [BlockSchedule(name="main", stages=stages)])
    assert [schedule.streams, len(schedule.stages)] == [2, 2]
    assert lines(schedule_table(schedule)) == [
        "small on test-device, batch 1, fp32, paper engine, random:",
        "1.247 ms",
        "            before latency",
        "stage block     us      us groups (one a line, > in order)",
        "─" * 58,
        "    0 main     0.0    12.2 a",
        "                           b",
        "    1          0.0 1,234.5 merge: c + d",
    ]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_layers_are_folded_that_repeat_another_at_least_twice(count: int) -> None:
    b, x = builder_with("layers", x=(1, 1, 4, 4))
    for index in range(count):
        with b.block(f"layer{index}"):
            x = b.conv(x, 1, name=f"conv{index}")
    folds = repeats(sequential_schedule(b.network([x])))
    assert [(fold.first, fold.count, fold.blocks) for fold in folds] == [(1, count - 1, f"layer1-{count - 1}")][
        : count - 2
    ]


def test_long_groups_wrap_and_numbers_stay_whole() -> None:
    b, x = builder_with("wide", x=(1, 1, 1, 1))
    names = [f"a_rather_long_name_{index}" for index in range(9)]
    with b.block("main"):
        for name in names:
            x = b.conv(x, 1, name=name)
    network = b.network([x])
    schedule = make_schedule(network, [BlockSchedule(name="main", stages=[make_stage([names])])])
    printed = lines(schedule_table(schedule))
    assert max(map(len, printed)) <= 80
    text = " ".join(" ".join(printed).split())
    assert all(name in text for name in names)


@pytest.mark.parametrize("width", [80, 60, 46])
def test_names_lose_their_beginning_and_a_row_stays_a_line(width: int) -> None:
    rows = [
        {"layer": f"bert.encoder.layers.{n}.attention.output.dense", "kind": "Gemm", "latency_us": 1234.5}
        for n in (1, 2)
    ]
    columns = [
        Column("layer", shortens=True),
        Column("kind"),
        Column("latency_us", digits=1),
        Column("text", wraps=True),
    ]
    printed = lines(records_table("", [{**row, "text": "a few words and a few more"} for row in rows], columns), width)
    body = printed[3:] if width > 60 else [line for line in printed[3:] if "Gemm" in line]
    assert max(map(len, printed)) <= width
    assert len(body) == 2
    assert all("1,234.5" in line for line in body)
    names = [line.split()[0] for line in body]
    assert all(name.startswith("…") and row["layer"].endswith(name[1:]) for name, row in zip(names, rows, strict=True))


def test_no_digit_is_lost_where_nothing_can_give_way() -> None:
    rows = [{f"a_{n}": 1234567 + n for n in range(6)}]
    printed = lines(records_table("", rows), 40)
    assert max(map(len, printed)) <= 40
    body = "".join(printed[next(n for n, line in enumerate(printed) if line.startswith("─")) + 1 :])
    assert sum(letter.isdigit() for letter in body) == len("1234567") * 6


def test_markup_in_a_name_is_printed_as_it_is() -> None:
    assert lines(records_table("[bold]t", [{"name": "[red]a[/red]"}]))[-1] == "[red]a[/red]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "yes"), (False, "no"), (1170663, "1,170,663"), (91973 * 10**18, "9.197e+22"),
        (0.5, "0.50"), (1234.5, "1,234.50"), (7e12, "7.000e+12"), ("word", "word"),
    ],
)  # fmt: skip
def test_cells(value: str | float | None, text: str) -> None:
    assert spelled(value) == text


def test_a_described_table_has_the_columns_of_its_longest_record() -> None:
    head, _, *rows = lines(described_table("iossim.report", "choices", "", [{"unit": 1}, {"otherwise": 2, "unit": 3}]))
    assert (head.split(), [row.split() for row in rows]) == (["alternative", "unit"], [["1"], ["2", "3"]])
