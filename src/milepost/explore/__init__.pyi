"""What `milepost.explore` exports; each name is imported when it is first used."""

from milepost.explore.analyses.alibi import alibi_view as alibi_view
from milepost.explore.analyses.angles import angles_seen as angles_seen
from milepost.explore.analyses.angles import wavelengths as wavelengths
from milepost.explore.analyses.bias_curves import bias_curves as bias_curves
from milepost.explore.analyses.buckets import bucket_map as bucket_map
from milepost.explore.analyses.buckets import shift_map as shift_map
from milepost.explore.analyses.contexts import nbce_entropies as nbce_entropies
from milepost.explore.analyses.cope import cope_counts as cope_counts
from milepost.explore.analyses.decay import decay_bound as decay_bound
from milepost.explore.analyses.decay import dot_products as dot_products
from milepost.explore.analyses.distances import distance_map as distance_map
from milepost.explore.analyses.entropy import attention_entropy as attention_entropy
from milepost.explore.analyses.linear import negative_denominators as negative_denominators
from milepost.explore.analyses.padding import padding_leak_map as padding_leak_map
from milepost.explore.analyses.patches import patch_scores as patch_scores
from milepost.explore.analyses.precision import phase_errors as phase_errors
from milepost.explore.analyses.radix import odometer as odometer
from milepost.explore.analyses.scores_by_distance import before_after as before_after
from milepost.explore.analyses.scores_by_distance import score_bands as score_bands
from milepost.explore.analyses.scores_by_distance import score_bound as score_bound
from milepost.explore.analyses.sinusoidal import sinusoidal_map as sinusoidal_map
from milepost.explore.analyses.streaming import stream_cache as stream_cache
from milepost.explore.analyses.terms import kept_terms as kept_terms
from milepost.explore.analysis import Analysis as Analysis
from milepost.explore.analysis import Array as Array
from milepost.explore.heads import look as look
