"""Hooks of mkdocs: the README and other files of the repository's root are pages, and the command line is one that is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim._version import __version__
from iossim.cli.main import build_command

if TYPE_CHECKING:  # the generated text is tested without mkdocs
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
#: Files of the repository's root by the page that they are.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text.replace("](README.md)", "](index.md)")))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    files.append(File.generated(config, "cli.md", content="\n".join(command_line())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link from ``docs`` to the repository's root is one to the page that the file is."""
    depth = page.file.src_uri.count("/") + 1
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({'../' * depth}{name}", f"]({'../' * (depth - 1)}{target}")
    return markdown


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Roles of docstrings (``:func:`name```) are plain code, and options do not break; a last line has the version, and the file of the page."""
    shown = re.sub(r":(?:func|class|mod|attr|meth):<code>~?([^<]*)</code>", r"<code>\1</code>", html)
    source = next((name for name, target in PAGES.items() if target == page.file.src_uri), f"docs/{page.file.src_uri}")
    if page.file.src_uri == "cli.md":
        source = "iossim/cli"
    shown = re.sub(r"<code>(--?[\w-]{1,24})</code>", r'<code class="option">\1</code>', shown)
    return f'{shown}<p class="source-of-page">iossim {__version__} · written in {source}</p>'


def command_line() -> Iterator[str]:
    """A section for each command, with a table of its options: what ``--help`` says."""
    yield "# Command line\n"
    yield "What `iossim COMMAND --help` prints. [Commands and options](commands.md) shows each command at work.\n"
    yield from _sections(build_command(), "iossim", 2)


def _sections(command: Any, name: str, level: int) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    if name != "iossim":
        yield f"{'#' * level} {name}\n\n{_cell(command.help or '')}\n"
        level += 1
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    if parameters and not commands:
        yield "| option | meaning |\n|---|---|"
        for each in parameters:
            # Typer has classes of its own in place of click's.
            spellings = [*each.opts, *each.secondary_opts] if each.param_type_name == "option" else []
            spelled = ", ".join(f"`{spelling}`" for spelling in spellings)
            metavar = f"`{each.metavar or each.name.upper()}`" if not getattr(each, "is_flag", False) else ""
            yield f"| {' '.join(filter(None, (spelled, metavar)))} | {_cell(getattr(each, 'help', '') or '')} |"
        yield ""
    for sub, inner in commands.items():
        if not inner.hidden:
            yield from _sections(inner, f"{name} {sub}", level)


def _cell(text: str) -> str:
    return re.sub(r"([|<*_\[\]])", r"\\\1", " ".join(text.split()))
