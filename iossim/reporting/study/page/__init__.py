"""The page of a report: its HTML, style and scripts, which :mod:`iossim.reporting.study.report` puts together."""
