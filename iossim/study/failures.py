"""Why parts of a study failed: a mistake in what was given is one line; a defect of iossim is a line and its traceback."""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass, field

from iossim.base.errors import IossimError

#: The folder of tracebacks in that of a run.
DEFECTS = "defects"


@dataclass
class Failures:
    """What failed in one piece of work; ``tracebacks`` are the texts of files, by name, that the run's folder is to hold."""

    tracebacks: dict[str, str] = field(default_factory=dict)

    def reason(self, error: Exception) -> str:
        """One line. Of what is no :class:`IossimError` it says of what class it is, and where its traceback is.

        Equal tracebacks are one file, whichever worker met them.
        """
        text = " ".join(str(error).split())
        if isinstance(error, IossimError):
            return text
        told = "".join(traceback.format_exception(error))
        name = f"{DEFECTS}/{hashlib.sha256(told.encode()).hexdigest()[:12]}.txt"
        self.tracebacks[name] = told
        return f"{type(error).__name__}: {text} (a defect of iossim; its traceback is in {name})"
