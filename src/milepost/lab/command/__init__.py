"""milepost compare, report, diff and export: their options, progress and printed tables."""
