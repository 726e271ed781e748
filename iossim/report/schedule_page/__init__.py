"""A schedule as one page: timeline, graph, stages and why they are as they are; offline, and without any library."""

from iossim.report.schedule_page.page import Recording, schedule_page

__all__ = ["Recording", "schedule_page"]
