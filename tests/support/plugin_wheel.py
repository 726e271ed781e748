"""The template of a plugin as a wheel, with entries that are broken beside it, built with nothing but Python."""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path


def plugin_wheel(template: Path, broken: Path, folder: Path) -> Path:
    """Writes the wheel of ``template`` into a folder; modules and entry points of ``broken`` come along."""
    project = tomllib.loads((template / "pyproject.toml").read_text())["project"]
    further = tomllib.loads((broken / "entry_points.toml").read_text())
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    sources = template / "src"
    files = {path.relative_to(sources).as_posix(): path.read_bytes() for path in sorted(sources.rglob("*.py"))}
    files |= {f"iossim_example/{path.name}": path.read_bytes() for path in sorted(broken.glob("*.py"))}
    entry_points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in (named | further.get(group, {})).items())
        for group, named in project["entry-points"].items()
    )
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: plugin_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for name, text in (("METADATA", metadata), ("WHEEL", wheel), ("entry_points.txt", entry_points)):
        files[f"{stem}.dist-info/{name}"] = text.encode()
    record = f"{stem}.dist-info/RECORD"
    rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
