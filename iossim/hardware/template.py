"""A device profile to fill in: every fact with its meaning, its unit, and where to find it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from string import Template

from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.names import check_name, own_names
from iossim.hardware.write import check_writable


def write_template(name: str, path: Path, folder: Path) -> None:
    """Write the template of a device ``name`` to ``path``, which must not exist yet; ``folder`` is the user's.

    Raises DeviceError for an invalid name, or that of a shipped device, and if the file cannot be written.
    """
    check_name(name)
    if name in own_names():
        raise DeviceError(f"device name {name!r} is that of a device that iossim has; choose another name")
    template = Template((resources.files("iossim.hardware") / "template.yaml").read_text(encoding="utf-8"))
    text = template.substitute(name=name, file=path, folder=folder, capabilities=", ".join(LIMITS))
    try:
        if path.absolute().parent == folder.absolute():
            # The template names it, and it does not exist before the first profile does.
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {folder}: {error.strerror}; choose another file") from None
    check_writable(path)
    try:
        # 'x' refuses an existing file, even one created meanwhile.
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise DeviceError(f"device profile {path} is there already; choose another file with `out`") from None
    except OSError as error:
        raise DeviceError(f"cannot write device profile {path}: {error.strerror}; choose another file") from None
