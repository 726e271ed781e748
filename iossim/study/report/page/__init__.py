"""The page of a report: its HTML, style and scripts, which :mod:`iossim.study.report.report` assembles."""
