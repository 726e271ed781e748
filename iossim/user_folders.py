"""Where a user's own files stand: what is kept (measurements, profiles of the machine) and what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_data() -> Path:
    """``$IOSSIM_DATA_DIR``, or iossim's place in the platform's folder of application data; it may not exist yet."""
    if chosen := os.environ.get("IOSSIM_DATA_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "iossim" / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "iossim"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "iossim"
