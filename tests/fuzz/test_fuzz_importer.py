"""No file makes the importer show a traceback, take more than 4 GiB or 60 s, or price nonsense: it imports, or one line says why not."""

import json
import zlib
from collections.abc import Iterator
from functools import cache

import pytest
from fuzz_adversarial import CASES
from fuzz_mutations import MUTATIONS, Mutant, mutant_of
from fuzz_runner import LIMIT_S, Runner, Tally
from fuzz_seeds import seed_models
from fuzz_worker import REBATCHED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: Seed models that are there at once; ONNX's cases a node each are generated first.
QUICK = ("exported", "made", "simple", "pytorch-operator")


@cache
def quick_models() -> dict[str, bytes]:
    return seed_models(QUICK, largest_bytes=1 << 17)


@pytest.fixture(scope="module")
def importer() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


#: Files of megabytes, which are slow to write.
LARGE = ("small nodes", "small numbers", "more operators than can be read")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in CASES])
def test_hostile_file(name: str, importer: Runner) -> None:
    case = CASES[name]
    outcome = importer.run(case.data() if callable(case.data) else case.data)
    assert outcome.is_fine, outcome
    assert (outcome.verdict == "imported") == (not case.says), outcome
    assert case.says in outcome.line
    assert "model.onnx" in outcome.line or not case.says
    assert outcome.grown_bytes < 512 << 20


def test_seeds_themselves_import(importer: Runner) -> None:
    """Else their mutants would all be refused for the same reason; some of the simple ones are of text, or random."""
    outcomes = {name: importer.run(data) for name, data in quick_models().items()}
    assert all(outcome.is_fine for outcome in outcomes.values())
    assert sum(outcome.verdict == "imported" for outcome in outcomes.values()) > 0.8 * len(outcomes)


STEPS = st.lists(st.tuples(st.sampled_from(MUTATIONS), st.integers(0, 2**32 - 1)), min_size=1, max_size=4)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.deferred(lambda: st.sampled_from(sorted(quick_models()))), STEPS)
def test_mutants(importer: Runner, seed: str, steps: list[tuple[str, int]]) -> None:
    outcome = importer.run(Mutant(seed, tuple(steps)).data(quick_models()))
    assert outcome.is_fine, outcome


# What draws pictures reserves more addresses than the workers may have.
OPTIMIZE = "optimize model.onnx -d v100-sxm2 --scheduler sequential --no-plot --out out"


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    st.deferred(lambda: st.sampled_from(sorted(quick_models()))),
    STEPS,
    st.sampled_from(["models show model.onnx", OPTIMIZE]),
)
def test_commands_on_mutants(command: Runner, seed: str, steps: list[tuple[str, int]], words: str) -> None:
    """Exit code 2, one line on standard error, and no file left behind; or the command does what it should."""
    (command.folder / "model.onnx").write_bytes(Mutant(seed, tuple(steps)).data(quick_models()))
    outcome = command.run(json.dumps(words.split()).encode(), "arguments.json")
    assert outcome.is_fine, outcome


def test_the_runner_tells_what_goes_wrong() -> None:
    """Else nothing that it finds fine would be: a worker that dies, one that does not answer, one that takes too much."""
    words = {"fine": "imported", "refuse": "unclear", "raise": "traceback", "die": "crash", "hang": "timeout"}
    with Runner("probe", limit_s=1.0) as runner:
        for word, verdict in {**words, "take": "memory"}.items():
            assert runner.run(word.encode()).verdict == verdict


@pytest.mark.slow
def test_thousands_of_mutants() -> None:
    models = seed_models()
    assert len(models) > 2000
    tally = Tally()
    with Runner() as runner:
        for number in range(2000):
            mutant = mutant_of(2024 * 1_000_003 + number, list(models))
            data = mutant.data(models)
            # One of four is read for another batch than the file's, which is a reading of its own.
            outcome = runner.run(data, REBATCHED if zlib.crc32(data) % 4 == 0 else "model.onnx")
            tally.add(outcome)
            assert outcome.is_fine, f"{mutant}: {outcome}"
    assert tally.verdicts["imported"] > 300
    assert tally.verdicts["refused"] > 1000
    assert tally.longest_s < LIMIT_S
    assert tally.grown_bytes < 4 << 30
