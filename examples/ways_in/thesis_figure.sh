# A figure of the thesis on IOS, computed anew: which scheduler wins on which network. Page: docs/studies.md
set -e
iossim study show schedules_compared
iossim study run schedules_compared --out schedules_compared # open schedules_compared/report.html
