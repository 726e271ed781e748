"""The measurement store: what goes in comes out, from whatever process, and stays in whatever happens."""

import multiprocessing
import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim.cost.measured import cost_model as measured
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.profiling import ProfileOptions, profile, profile_parts
from iossim.cost.measured.record import Kind, MeasurementRecord, boundary_us
from iossim.cost.measured.store import APPLICATION_ID, MIGRATIONS, Filter, MeasurementStore, StoreError, default_store
from iossim.execution.backend import Context, Samples, Timing
from iossim.ir.network import Network

HERE = Context("fake", "here", "fp32", "paper", "nchw", "driver 1", (("a", "1"), ("b", "2")), (("threads", "2"),))


def made(signature: str = "s", times_us: tuple[float, ...] = (3.0, 1.0, 2.0), **fields: object) -> MeasurementRecord:
    values: dict[str, object] = {
        "context": HERE,
        "kind": Kind.UNIT,
        "copies": 1,
        "synchronises": 1,
        "samples": Samples(times_us, 2, {"load": 0.1 + 0.2, "governor": "performance"}),
        "subject": {"words": "a unit", "groups": [[{"signature": "u", "kind": "Conv", "operators": None}]]},
    }
    return MeasurementRecord(signature=signature, **{**values, **fields})  # type: ignore[arg-type]


def store_in(folder: Path, read_only: bool = False) -> MeasurementStore:
    return MeasurementStore(folder / "store.sqlite", read_only)


@settings(max_examples=25)
@given(
    times_us=st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=40).map(tuple),
    words=st.text(),
    algorithm=st.text(max_size=10),
    kind=st.sampled_from(Kind),
    cold=st.booleans(),
)
def test_a_record_comes_back_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    times_us: tuple[float, ...],
    words: str,
    algorithm: str,
    kind: Kind,
    cold: bool,
) -> None:
    """Every sample, exactly, and every word."""
    folder = tmp_path_factory.mktemp("store")
    record = made(times_us=times_us, subject={"words": words}, algorithm=algorithm, kind=kind, is_cold=cold, copies=7)
    with store_in(folder) as store:
        assert store.add([record]) == 1
    with store_in(folder, read_only=True) as store:
        (found,) = store.records()
    assert vars(found) == vars(record)
    assert found.digest == record.digest


def test_the_same_measurement_is_kept_once_and_all_or_none_of_what_is_added_together(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        record, other = made(), made()
        assert record.digest != other.digest  # another moment
        assert store.add([record, other]) == 2
        assert store.add([record]) == 0
        with pytest.raises(TypeError):
            store.add([made("good"), made("bad", subject={"words": object()})])
        assert len(store.records()) == 2
        assert store.add([made("good")]) == 1


def test_the_newest_counts_whatever_the_order(tmp_path: Path) -> None:
    dates = [f"2026-11-{day:02}T00:00:00+00:00" for day in (3, 5, 4)]
    with store_in(tmp_path) as store:
        for day, algorithm in zip(dates, ("", "x", "y"), strict=True):
            store.add([made(date=day, algorithm=algorithm)])
        store.add([made("other", date=dates[0]), made("cold", date=dates[0], is_cold=True)])
        found = store.newest(HERE, ["s", "other", "cold", "none"])
        assert {signature: record.date for signature, record in found.items()} == {"s": dates[1], "other": dates[0]}
        assert set(store.newest(HERE, ["s", "cold"], is_cold=True)) == {"cold"}
        assert [record.date for record in store.records()] == sorted([*dates, dates[0], dates[0]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, "x") for name in ("backend", "device", "precision", "engine", "layout", "driver")),
        ("libraries", (("a", "1"),)),
        ("options", (("threads", "1"),)),
    ],
)
def test_all_of_the_context_counts(tmp_path: Path, field: str, value: object) -> None:
    other = replace(HERE, **{field: value})  # type: ignore[arg-type]
    with store_in(tmp_path) as store:
        store.add([made()])
        assert store.newest(other, ["s"]) == {}
        store.add([made(context=other, times_us=(9.0,))])
        assert store.newest(other, ["s"])["s"].samples.median_us == 9.0
        assert store.newest(HERE, ["s"])["s"].samples.median_us == 2.0
        assert {one.context for one in store.contexts()} == {HERE, other}


def test_more_signatures_than_a_query_takes(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(1203)]
    with store_in(tmp_path) as store:
        store.add([made(name) for name in names])
        assert set(store.newest(HERE, names)) == set(names)


def test_filters_and_removal(tmp_path: Path) -> None:
    there = replace(HERE, device="there", engine="graph")
    with store_in(tmp_path) as store:
        store.add([made(f"s{number}", host="one") for number in range(3)])
        store.add([made("b", kind=Kind.BOUNDARY, context=there, date="2020-01-01", host="two")])
        here, second = store.contexts()
        assert (here.counts, here.hosts) == ({"unit": 3}, ("one",))
        assert (second.counts, second.hosts, second.first) == ({"boundary": 1}, ("two",), "2020-01-01")
        for chosen, count in (
            (Filter(), 4),
            (Filter(context=here.number), 3),
            (Filter(context=99), 0),
            (Filter(device="there"), 1),
            (Filter(kind=Kind.UNIT, engine="paper"), 3),
            (Filter(kind=Kind.UNIT, engine="graph"), 0),
            (Filter(before="2021"), 1),
            (Filter(backend="fake", precision="fp32"), 4),
        ):
            assert len(store.records(chosen)) == count
            assert sum(one.records for one in store.contexts(chosen)) == count
        assert store.remove(Filter(before="2021")) == 1
        assert [one.context for one in store.contexts()] == [HERE]
        store.add([made("b", context=there)])  # a context that was removed is made again
        assert len(store.records(Filter(device="there"))) == 1


def pair(date: str, with_us: float, copies: int = 5, signature: str = "b") -> list[MeasurementRecord]:
    """The records of a boundary, of which the one without synchronises takes 100 us."""
    both = ((with_us, copies), (100.0, 1))
    return [
        made(signature, (us,), kind=Kind.BOUNDARY, copies=copies, synchronises=count, date=date) for us, count in both
    ]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], None),
        ([made()], None),
        (pair("1", 120.0)[:1], None),
        (pair("1", 120.0), 5.0),
        (pair("1", 90.0), 0.0),
        ([*pair("2", 140.0), *pair("1", 120.0)], 10.0),
        ([*pair("1", 120.0), *pair("2", 110.0, 11, "c")], 1.0),
    ],
)
def test_what_a_boundary_takes(records: list[MeasurementRecord], expected: float | None) -> None:
    assert boundary_us(records) == expected


def test_where_the_default_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "deep" / "data"))
    assert default_store() == tmp_path / "deep" / "data" / "measurements.sqlite"
    with MeasurementStore() as store:
        store.add([made()])
    assert default_store().is_file()


def test_schema_is_versioned(tmp_path: Path) -> None:
    store_in(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        expected = {"journal_mode": "wal", "user_version": len(MIGRATIONS), "application_id": APPLICATION_ID}
        for name, value in expected.items():
            assert connection.execute(f"PRAGMA {name}").fetchone() == (value,)
        versions = connection.execute("SELECT version, program FROM schema_version").fetchall()
    assert versions == [(number + 1, iossim.__version__) for number in range(len(MIGRATIONS))]


def newer(path: Path) -> None:
    MeasurementStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def damaged(path: Path) -> None:
    with MeasurementStore(path) as store:
        store.add([made(f"s{number}") for number in range(200)])
    path.write_bytes(path.read_bytes()[:4096].ljust(path.stat().st_size, b"\xff"))


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (newer, rf"has schema {len(MIGRATIONS) + 1}, .* update iossim"),
        (lambda path: path.write_bytes(b"not a database, but long enough to look like one" * 100), "is not a database"),
        (lambda path: path.write_bytes(b"x"), "store.sqlite is not a database"),
        (of_another_program, "of another program"),
        (damaged, "no SQLite file or is damaged"),
    ],
)
def test_what_is_no_store_is_refused_in_a_line_and_left_alone(
    tmp_path: Path, write: Callable[[Path], object], message: str, read_only: bool
) -> None:
    path = tmp_path / "store.sqlite"
    write(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message), MeasurementStore(path, read_only) as store:
        store.records()
    assert path.read_bytes() == before


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no measurement store"):
        store_in(tmp_path, read_only=True)
    (tmp_path / "store.sqlite").touch()
    with pytest.raises(StoreError, match="is empty; fill it with profile"):
        store_in(tmp_path, read_only=True)
    with pytest.raises(StoreError, match="unable to open"):
        MeasurementStore(tmp_path)
    with pytest.raises(StoreError, match="cannot make the folder"):
        MeasurementStore(tmp_path / "store.sqlite" / "below.sqlite")


def test_reading_leaves_nothing_behind_and_writes_nothing(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.add([made()])
    before = (tmp_path / "store.sqlite").read_bytes()
    with store_in(tmp_path, read_only=True) as store:
        assert len(store.records()) == 1
        with pytest.raises(StoreError, match="readonly database; choose a file that you may write to"):
            store.add([made()])
    assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]
    assert (tmp_path / "store.sqlite").read_bytes() == before


def test_a_store_in_a_folder_that_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read without files beside it; what stands in the log of a writer is not overlooked."""
    writer = store_in(tmp_path)
    writer.add([made()])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with store_in(tmp_path, read_only=True) as store:
        assert len(store.records()) == 1
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]
    with store_in(tmp_path, read_only=True) as store:
        assert len(store.records()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]


def _add_many(path: Path, number: int, count: int) -> None:
    with MeasurementStore(path) as store:
        for index in range(count):
            store.add([made(f"{number} {index}", process=number)])


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    """Four processes make the store together, and write into it one record a transaction."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(tmp_path / "store.sqlite", number, 25)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    with store_in(tmp_path) as store:
        assert {record.signature for record in store.records()} == {f"{n} {i}" for n in range(4) for i in range(25)}
        assert len(store.contexts()) == 1


class ReportingStore(MeasurementStore):
    """Appends the digests of records to a file once ``add`` has returned."""

    def __init__(self, path: Path, report: Path) -> None:
        super().__init__(path)
        self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, records: Sequence[MeasurementRecord]) -> int:
        new = super().add(records)
        os.write(self._report, b"".join(f"{record.digest}\n".encode() for record in records))
        return new


def profile_again_and_again(network: Network, path: Path, report: Path, chunk: int) -> None:
    """Profile a network, all anew each time, until killed; commits come often, a ``chunk`` of stages each."""
    measured.CHUNK = chunk
    store = ReportingStore(path, report)
    while True:
        model = MeasuredCostModel(FakeBackend(), store, Timing(rounds=5, warm_up=0), again=True)
        profile(network, model, profile_parts(network, model, ProfileOptions()))


def kill_writers(
    folder: Path, kills: int, writers: int = 4, chunk: int = 2, seed: int = 0
) -> tuple[set[str], set[str]]:
    """The digests that writers reported and those found, after they made one store and profiled into it together, and were
    killed at random moments and started again.
    """
    context = multiprocessing.get_context("fork")  # all that a writer needs is loaded already
    network = iossim.load("squeezenet")
    path = folder / "store.sqlite"
    generator = random.Random(seed)
    reports = [folder / f"report{number}" for number in range(writers)]

    def start(number: int) -> BaseProcess:
        process = context.Process(
            target=profile_again_and_again, args=(network, path, reports[number], chunk), daemon=True
        )
        process.start()
        return process

    processes = [start(number) for number in range(writers)]
    while any(not report.exists() or report.stat().st_size < 500 for report in reports):
        assert all(process.exitcode is None for process in processes), "a writer has failed"
        time.sleep(0.01)
    for _ in range(kills):
        time.sleep(generator.uniform(0.0, 0.15))
        number = generator.randrange(writers)
        assert processes[number].exitcode is None, "a writer has failed"
        processes[number].kill()
        processes[number].join()
        processes[number] = start(number)
    for process in processes:
        process.kill()
        process.join()
    lines = [line for report in reports for line in report.read_text().split("\n")]
    with MeasurementStore(path, read_only=True) as store:
        found = {record.digest for record in store.records()}
        assert len(store.contexts()) == 1
    # A line that a kill cut short reported nothing.
    return {line for line in lines if len(line) == 32}, found


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_writers_lose_nothing_that_was_reported(kills: int, tmp_path: Path) -> None:
    reported, found = kill_writers(tmp_path, kills)
    assert len(reported) > kills
    assert reported <= found
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    # Resume: whatever is kept is not measured again, and all is measured in the end.
    network = iossim.load("squeezenet")
    backend = FakeBackend()
    with store_in(tmp_path) as store:
        model = MeasuredCostModel(backend, store, Timing(rounds=5, warm_up=0))
        parts = profile_parts(network, model, ProfileOptions())
        batches = [batch for part in parts for batch in part.batches]
        held = {signature for batch in batches for signature in model.signatures(batch)}
        kept = len(store.newest(backend.context, [str(signature) for signature in held]))
        resumed = profile(network, model, parts)
        assert resumed.complete
        assert model.measured == len(held) - kept
        assert sum(part.kept for part in resumed.parts) == kept
        assert sum(len(part.records) for part in resumed.parts) == len(held)
