"""What `milepost.parallel` exports; each name is imported when it is first used."""

from milepost.parallel.attend import attend as attend
from milepost.parallel.gradients import sum_gradients as sum_gradients
from milepost.parallel.layout import Layout as Layout
from milepost.parallel.layout import pairs as pairs
from milepost.parallel.shards import shard as shard
from milepost.parallel.shards import unshard as unshard

__all__: list[str]
