#!/usr/bin/env python3
"""Check the site as it was built: no page loads anything from elsewhere (what a page needs lies beside it), the page of
the API has an anchor for each public name and member, and that of the command line names its options.

python .ci/site_requests.py SITE
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

#: What loads a file as the page opens; links are followed by readers alone.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "use": "href"}
#: What a ``link`` only names.
NAMED = ("canonical", "prev", "next", "alternate")


class Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADS.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")) and given.get("rel") not in NAMED:
            self.found.append(address)

    handle_startendtag = handle_starttag


def api_anchors(page: str) -> list[str]:
    """The names that ``docs/api.md`` asks for, and their members, in its order."""
    found = []
    for name, members in re.findall(r"^::: (\S+)(?:\n +options: \{members: \[(.*?)\])?", page, re.MULTILINE):
        found += [name, *(f"{name}.{member}" for member in filter(None, re.split(r",\s*", members)))]
    return found


def missing(site: Path, api: str) -> list[str]:
    """Anchors and options that the built pages lack, a line each; ``api`` is the text of ``docs/api.md``."""
    shown = (site / "api.html").read_text(encoding="utf-8")
    found = [f"api.html has no anchor {name}" for name in api_anchors(api) if f'id="{name}"' not in shown]
    commands = (site / "cli.html").read_text(encoding="utf-8")
    return found + ["cli.html does not name --device"] * (">--device</code>" not in commands)


def main(site: Path) -> int:
    pages = sorted(site.rglob("*.html"))
    wrong = []
    for page in pages:
        reader = Loads()
        reader.feed(page.read_text(encoding="utf-8"))
        wrong += [f"{page.relative_to(site)} loads {address}" for address in reader.found]
    wrong += missing(site, (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8"))
    print(f"{len(pages)} pages, {len(wrong)} things wrong with them")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
