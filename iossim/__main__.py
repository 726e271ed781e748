"""``python -m iossim`` and the command ``iossim``: an interrupt is heard while the command line is being imported."""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some reads about all installed packages
    gc.set_threshold(100_000, 20)  # what is imported stays: looking for garbage in it takes a tenth of a short command
    try:
        from iossim.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # ExitCode.INTERRUPTED, which may not be imported yet
    return run()


if __name__ == "__main__":
    sys.exit(main())
