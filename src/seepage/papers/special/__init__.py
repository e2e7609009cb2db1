"""Items of the papers that are no audit: functions `(tables, data, seed, show) -> values`, one topic per file."""
