"""Keys that are sharded over processes are refused by name: a shard's attention is not the text's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import milepost as mp
from milepost import causal
from tests.oracles import assert_same, inputs

SCHEME = mp.Scheme(mp.Rope(8), causal)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """A world of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_context_parallel_is_refused_and_forgotten(mesh: DeviceMesh):
    from torch.distributed.tensor.experimental import context_parallel

    q, k, v = inputs(t=8)
    # Calls that look alike are remembered: these must be refused too.
    before = [mp.attend(q, k, v, SCHEME) for _ in range(3)]
    traced = torch.compile(lambda *given: mp.attend(*given, SCHEME), fullgraph=True, backend="eager")
    assert_same(traced(q, k, v), before[0])
    buffer = torch.zeros(1, 8, 1)
    with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[1]):
        for attend in (lambda *given: mp.attend(*given, SCHEME), traced):
            with pytest.raises(
                Exception, match=r"context_parallel\(\) .* call milepost\.parallel\.attend\(q, k, v, scheme"
            ):
                attend(q, k, v)
    assert torch.equal(mp.attend(q, k, v, SCHEME), before[0])
    assert_same(traced(q, k, v), before[0])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_distributed_tensors_are_refused(mesh: DeviceMesh, which: int):
    from torch.distributed.tensor import DTensor, Shard

    given = list(inputs(t=8))
    given[which] = DTensor.from_local(given[which], mesh, [Shard(2)])
    with pytest.raises(NotImplementedError, match=rf"attend: {'qkv'[which]} is a DTensor, placed as .* not supported"):
        mp.attend(*given, SCHEME)
