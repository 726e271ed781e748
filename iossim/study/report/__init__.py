"""The report of a study: one HTML file, the same figures as pictures, and as tables of the terminal."""

from iossim.study.report.report import write_report

__all__ = ["write_report"]
