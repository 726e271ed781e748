"""``.ci/skips.py``: what no run ran is listed, and only expected reasons pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "skips.py"
SKIPPED_MODULE = (
    '<testcase classname="" name="tests.b"><skipped message="collection skipped">'
    "('tests/b.py', 19, \"Skipped: needs it; pip install 'it'\")</skipped></testcase>"
)


def junit(path: Path, **reasons: str) -> Path:
    """A run's file: of each test of module ``tests.a`` the reason for which it was skipped, "" where it ran."""
    rows = [
        f'<testcase classname="tests.a" name="{name}">{f"<skipped message={reason!r}/>" if reason else ""}</testcase>'
        for name, reason in reasons.items()
    ]
    path.write_text(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>")
    return path


def judged(expected: str, *files: Path) -> tuple[int, str]:
    folder = files[0].parent
    (folder / "expected.txt").write_text(f"# why\n{expected}\n")
    command = [sys.executable, str(SCRIPT), str(folder / "expected.txt"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_expected_reasons_pass_and_others_fail(tmp_path: Path) -> None:
    run = junit(tmp_path / "run.xml", test_one="", test_two="no GPU")
    code, said = judged(": no GPU$", run)
    assert code == 0
    assert "1 tests ran in 1 runs; 1 tests or modules were skipped" in said
    assert "tests.a.test_two" in said
    code, said = judged(": no G$", run)
    assert code == 1
    assert "no GPU  <- NOT EXPECTED" in said


def test_what_another_run_ran_is_not_skipped(tmp_path: Path) -> None:
    first, second = (
        junit(tmp_path / "1.xml", test_one="", test_two="no torch"),
        junit(tmp_path / "2.xml", test_two=""),
    )
    code, said = judged("nothing", first, second)
    assert code == 0
    assert "2 tests ran in 2 runs; 0 tests" in said


def test_a_module_that_is_skipped_whole(tmp_path: Path) -> None:
    run = junit(tmp_path / "1.xml", test_one="")
    run.write_text(run.read_text().replace("</testsuite>", f"{SKIPPED_MODULE}</testsuite>"))
    code, said = judged("nothing", run)
    assert code == 1
    assert "needs it; pip install 'it'  <- NOT EXPECTED" in said
    other = junit(tmp_path / "2.xml", test_three="")
    other.write_text(other.read_text().replace("tests.a", "tests.b"))
    assert judged("nothing", run, other)[0] == 0


def test_runs_of_no_test_fail(tmp_path: Path) -> None:
    assert judged("no GPU", junit(tmp_path / "run.xml", test_one="no GPU"))[0] == 1
