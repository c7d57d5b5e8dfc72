"""Drawings in the style of the reports: curves, maps and clocks, as SVG and by matplotlib."""
