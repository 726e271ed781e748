"""This machine's own CPU as a device: its profile in the user's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import DeviceError
from iossim.base.user_files import read_text
from iossim.base.user_folders import user_data

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

#: The device's name.
HOST_CPU = "cpu"


def host_cpu_path() -> Path:
    """Path of the profile of this machine's CPU."""
    return user_data() / "devices" / f"{HOST_CPU}.yaml"


def load_host_cpu(path: Path | None = None) -> DeviceProfile:
    """The saved profile; raises DeviceError with the command that makes it if there is none."""
    from iossim.hardware.profile import parse

    path = path or host_cpu_path()
    if not path.exists():
        raise DeviceError(
            f"device {HOST_CPU!r}: this machine's CPU has no profile at {path}; make one with "
            "iossim profile MODEL --backend onnxruntime_cpu, or in seconds with iossim compare MODEL --device cpu"
        )
    return parse(read_text(path, "device profile", "make it again with iossim profile", DeviceError), str(path))


def save_host_cpu(profile: DeviceProfile, path: Path | None = None) -> Path:
    """Save a profile, completely or not at all; returns its path. Raises DeviceError if it cannot be written."""
    from iossim.hardware.write import write_profile

    path = path or host_cpu_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(
            f"cannot make the folder {path.parent}: {error.strerror}; set IOSSIM_DATA_DIR to a folder that can be "
            "written"
        ) from None
    write_profile(profile, path)
    return path
