#!/usr/bin/env python3
"""Check that no page of the site loads anything from elsewhere: what a page needs lies beside it.

python .ci/site_requests.py SITE
"""

from __future__ import annotations

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


def main(site: Path) -> int:
    pages = sorted(site.rglob("*.html"))
    wrong = []
    for page in pages:
        reader = Loads()
        reader.feed(page.read_text(encoding="utf-8"))
        wrong += [f"{page.relative_to(site)} loads {address}" for address in reader.found]
    print(f"{len(pages)} pages, {len(wrong)} of them load something from elsewhere")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
