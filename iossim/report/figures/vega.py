"""The libraries that draw specifications in a browser: Vega, Vega-Lite and Vega-Embed in one text, from vl-convert.

Bundling takes seconds and is the same for each version, so it is kept in the user's cache folder.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from iossim.base.errors import OptionError
from iossim.base.user_files import write_atomically
from iossim.base.user_folders import user_cache
from iossim.report.figures.specifications import need_altair

_PACKAGE = "vl-convert-python"


def need_vl_convert() -> Any:
    """The module; raises OptionError where it is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise OptionError(
            "a report needs vl-convert-python, which is not installed; pip install 'iossim[report]'"
        ) from None
    return vl_convert


def vega_lite_version() -> str:
    """Of altair's specifications: ``6.4``."""
    return ".".join(need_altair().SCHEMA_VERSION.lstrip("v").split(".")[:2])


@cache
def libraries() -> str:
    """JavaScript that defines ``vegaEmbed``, ``vega`` and ``vegaLite``; raises OptionError where it is not to be had."""
    try:
        installed = version(_PACKAGE)
    except PackageNotFoundError:
        installed = ""
    kept = user_cache() / f"vega-{installed}-{vega_lite_version()}.js"
    if installed and kept.is_file():
        return kept.read_text(encoding="utf-8")
    bundle: str = need_vl_convert().javascript_bundle(vl_version=vega_lite_version())
    _keep(kept, bundle)
    return bundle


def _keep(path: Path, text: str) -> None:
    try:
        os.makedirs(path.parent, exist_ok=True)
        write_atomically(path, text)
    except OSError:
        # A cache folder that cannot be written costs time, no more.
        return
