"""The scripts of ``.ci``: sizes beyond their limits, skips that nobody expects, files missing in a package, pages made from code."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import iossim

ROOT = Path(__file__).resolve().parents[1]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SKIPPED_MODULE = (
    '<testcase classname="" name="tests.b"><skipped message="collection skipped">'
    "('tests/b.py', 19, \"Skipped: needs it; pip install 'it'\")</skipped></testcase>"
)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def junit(path: Path, **reasons: str) -> Path:
    """A run's file: of each test of module ``tests.a`` the reason for which it was skipped, "" where it ran."""
    rows = [
        f'<testcase classname="tests.a" name="{name}">{f"<skipped message={reason!r}/>" if reason else ""}</testcase>'
        for name, reason in reasons.items()
    ]
    path.write_text(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>")
    return path


def judged_skips(expected: str, *files: Path) -> tuple[int, str]:
    reasons = files[0].with_name("expected.txt")
    reasons.write_text(f"# why\n{expected}\n")
    done = run("skips", reasons, *files)
    return done.returncode, done.stdout + done.stderr


def test_expected_reasons_pass_and_others_and_runs_of_no_test_fail(tmp_path: Path) -> None:
    both = junit(tmp_path / "run.xml", test_one="", test_two="no GPU")
    code, said = judged_skips(": no GPU$", both)
    assert code == 0
    assert "1 tests ran in 1 runs; 1 tests or modules were skipped" in said
    assert "tests.a.test_two" in said
    code, said = judged_skips(": no G$", both)
    assert code == 1
    assert "no GPU  <- NOT EXPECTED" in said
    assert judged_skips("no GPU", junit(tmp_path / "run.xml", test_one="no GPU"))[0] == 1


def test_what_another_run_ran_is_not_skipped(tmp_path: Path) -> None:
    first = junit(tmp_path / "1.xml", test_one="", test_two="no torch")
    code, said = judged_skips("nothing", first, junit(tmp_path / "2.xml", test_two=""))
    assert code == 0
    assert "2 tests ran in 2 runs; 0 tests" in said


def test_a_module_that_is_skipped_whole(tmp_path: Path) -> None:
    first, other = junit(tmp_path / "1.xml", test_one=""), junit(tmp_path / "2.xml", test_three="")
    first.write_text(first.read_text().replace("</testsuite>", f"{SKIPPED_MODULE}</testsuite>"))
    code, said = judged_skips("nothing", first)
    assert code == 1
    assert "needs it; pip install 'it'  <- NOT EXPECTED" in said
    other.write_text(other.read_text().replace("tests.a", "tests.b"))
    assert judged_skips("nothing", first, other)[0] == 0


def test_sizes_beyond_their_limits_are_named() -> None:
    beyond_limits = script("sizes").beyond_limits
    limits = {"product, lines": 10, "product, files": 2}
    assert beyond_limits({"product, lines": 10, "product, files": 2}, limits) == []
    assert beyond_limits({"product, lines": 11, "product, files": 1, "tests, lines": 5}, limits) == [
        "product, lines: 11, above the limit of 10 in .ci/limits.json",
        "tests, lines: 5, above the limit of 0 in .ci/limits.json",
    ]


TRACKED = ("iossim/a.py", "iossim/page/a.css", "backends/b.py", "hw_profiles/t4.yaml", "tests/test_a.py")
INSTALLED = (
    "iossim/a.py",
    "iossim/page/a.css",
    "iossim/backends/b.py",
    "iossim/hw_profiles/t4.yaml",
    "iossim-1.dist-info/RECORD",
    "iossim/base/native/shipped/iossim.a-0123456789abcdef.so",
)
BUILDS = ("README.md", "LICENSE", "pyproject.toml", "setup.py", "build_backend.py")


def judged_package(tmp_path: Path, wheel: tuple[str, ...], sdist: tuple[str, ...]) -> tuple[int, list[str]]:
    source, dist = tmp_path / "source", tmp_path / "dist"
    dist.mkdir()
    for name in TRACKED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=source, check=True)
    with zipfile.ZipFile(dist / "iossim-1-py3-none-any.whl", "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    with tarfile.open(dist / "iossim-1.tar.gz", "w:gz") as archive:
        for name in sdist:
            archive.add(source / TRACKED[0], f"iossim-1/{name}")
    done = run("package_contents", source, dist)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("wheel", "sdist", "said"),
    [
        (INSTALLED, TRACKED[:4], []),
        ((INSTALLED[0], *INSTALLED[2:]), TRACKED[:4], ["the wheel lacks iossim/page/a.css"]),
        ((*INSTALLED, TRACKED[4]), TRACKED[:4], ["the wheel holds tests/test_a.py, which is no file of the product"]),
        (INSTALLED, TRACKED[:3], ["the sdist lacks hw_profiles/t4.yaml"]),
        (INSTALLED, TRACKED, []),
    ],
)
def test_what_is_missing_or_came_along_in_a_package_is_named(
    wheel: tuple[str, ...], sdist: tuple[str, ...], said: list[str], tmp_path: Path
) -> None:
    assert judged_package(tmp_path, wheel, (*sdist, *BUILDS)) == (bool(said), said)


def test_the_command_line_s_page_names_every_option() -> None:
    page = "\n".join(script("site").command_line())
    sections = dict(re.findall(r"^#+ (iossim .+)\n\n([^#]*)", page, re.MULTILINE))
    optimize = sections["iossim optimize"]
    for row in ("| `MODEL` | ", "| `--device`, `-d` `NAME` | ", "| `--plot`, `--no-plot` | ", "| `--json` | "):
        assert row in optimize
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 400
    named = [name for name, _ in rows if name.startswith("`-")]
    assert len(named) > 0.8 * len(rows), "arguments alone have no option's name"


def test_every_public_name_and_member_stands_on_the_page_of_the_api() -> None:
    anchors = script("site_requests").api_anchors(API)
    assert {f"iossim.{name}" for name in iossim.__all__ if name != "__version__"} <= set(anchors)
    for anchor in anchors:
        value: object = iossim
        for name in anchor.split(".")[1:]:
            fields = getattr(value, "model_fields", {}) | getattr(value, "__dataclass_fields__", {})
            value = fields[name] if name in fields else getattr(value, name)
    for member in ("Schedule.save", "Schedule.speedup", "Network.plot", "Comparison.to_dataframe"):
        assert f"iossim.{member}" in anchors


def test_a_page_without_an_anchor_or_an_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "api.html").write_text('<h2 id="iossim.load">')
    (tmp_path / "cli.html").write_text("<code>MODEL</code>")
    found = script("site_requests").missing(
        tmp_path, "::: iossim.load\n\n::: iossim.Network\n    options: {members: [plot]}\n"
    )
    assert found == [
        "api.html has no anchor iossim.Network",
        "api.html has no anchor iossim.Network.plot",
        "cli.html does not name --device",
    ]


@pytest.mark.slow
def test_the_site_builds_with_all_of_them(tmp_path: Path) -> None:
    """As .ci/run builds it."""
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config")
    build.build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    assert script("site_requests").missing(tmp_path / "site", API) == []


@pytest.mark.parametrize("tier", ["slow.txt", "exhaustive.txt"])
def test_the_tests_of_a_tier_are_there(tier: str) -> None:
    for line in (ROOT / ".ci" / tier).read_text(encoding="utf-8").splitlines():
        file, _, name = line.partition("::")
        assert not name or f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), line
