"""``python -m evidence``: recompute quoted figures of shipped numbers, convert public data sets, and find rules."""

from __future__ import annotations

import sys

from iossim.cli.main import main

if __name__ == "__main__":
    sys.exit(
        main(
            commands="evidence.commands",
            name="python -m evidence",
            purpose="How good the shipped numbers are, and how they were made.",
        )
    )
