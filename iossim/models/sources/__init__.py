"""Where models come from, a file each: whether it ``takes`` what is given, and how it is loaded (:mod:`iossim.models.load`)."""
