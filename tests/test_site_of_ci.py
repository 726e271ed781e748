"""The pages of the site that are made from code: every option of every command, and every public name with its members."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import iossim

ROOT = Path(__file__).resolve().parents[1]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    wanted = (
        "iossim.Schedule.save",
        "iossim.Schedule.speedup",
        "iossim.Network.plot",
        "iossim.Comparison.to_dataframe",
    )
    assert set(wanted) <= set(anchors)


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
