"""From scores to what they say: intervals, paired differences, reach, and the table of a sweep."""
