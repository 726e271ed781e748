"""``python -m iossim`` and the command ``iossim``: interrupts are handled even while the command line is imported."""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    # Pydantic would read the metadata of every installed package to look for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Imported modules stay alive: garbage collection over them takes a tenth of a short command.
    gc.set_threshold(500_000, 20)
    try:
        from iossim.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # ExitCode.INTERRUPTED, which may not be imported yet
    return run()


if __name__ == "__main__":
    sys.exit(main())
