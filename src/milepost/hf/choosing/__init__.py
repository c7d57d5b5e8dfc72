"""Which candidate of a plan to keep: texts that measure loss and recall in one pass, halving, the rule, the report."""
