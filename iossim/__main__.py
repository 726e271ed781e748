"""``python -m iossim`` and the command ``iossim``: an interrupt is heard while the command line is being imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from iossim.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # ExitCode.INTERRUPTED, which may not be imported yet
    return run()


if __name__ == "__main__":
    sys.exit(main())
