"""What `milepost.hf` exports; each name is imported when it is first used."""

from milepost.hf.checking.check import check as check
from milepost.hf.choosing.choose import choose as choose
from milepost.hf.contexts.memwalker import MemWalker as MemWalker
from milepost.hf.contexts.memwalker import asker as asker
from milepost.hf.contexts.nbce import nbce as nbce
from milepost.hf.contexts.streaming import StreamingCache as StreamingCache
from milepost.hf.exporting.export import export as export
from milepost.hf.extend import extend as extend
from milepost.hf.files.saving import load as load
from milepost.hf.files.saving import save as save
from milepost.hf.measuring.measure import measure as measure
from milepost.hf.model.extension import restore as restore
from milepost.hf.planning.plan import plan as plan
from milepost.hf.show import show as show
