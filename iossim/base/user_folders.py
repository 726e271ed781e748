"""Where a user's own files stand: what is kept (measurements, profiles of the machine) and what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_data() -> Path:
    """``$IOSSIM_DATA_DIR``, or iossim's place in the platform's folder of application data; it may not exist yet."""
    return _folder("IOSSIM_DATA_DIR", "data", "Application Support", "XDG_DATA_HOME", ".local/share")


def user_cache() -> Path:
    """``$IOSSIM_CACHE_DIR``, or iossim's place in the platform's cache folder; it may not exist yet."""
    return _folder("IOSSIM_CACHE_DIR", "cache", "Caches", "XDG_CACHE_HOME", ".cache")


def _folder(variable: str, windows: str, library: str, xdg_variable: str, xdg_default: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "iossim" / windows
    if sys.platform == "darwin":
        return Path.home() / "Library" / library / "iossim"
    return Path(os.environ.get(xdg_variable) or Path.home() / xdg_default) / "iossim"
