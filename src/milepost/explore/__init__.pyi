"""What `milepost.explore` exports; each name is imported when it is first used."""

from milepost.explore.analyses.angles import angles_seen as angles_seen
from milepost.explore.analyses.angles import wavelengths as wavelengths
from milepost.explore.analyses.contexts import nbce_entropies as nbce_entropies
from milepost.explore.analyses.cope import cope_counts as cope_counts
from milepost.explore.analyses.linear import negative_denominators as negative_denominators
from milepost.explore.analyses.padding import padding_leak_map as padding_leak_map
from milepost.explore.analyses.patches import patch_scores as patch_scores
from milepost.explore.analyses.precision import phase_errors as phase_errors
from milepost.explore.analyses.terms import kept_terms as kept_terms
from milepost.explore.analysis import Analysis as Analysis
from milepost.explore.analysis import Array as Array
