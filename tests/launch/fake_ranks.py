"""What a rank of many holds at the worst moment of a step, counted tensor by tensor on a machine with neither.

    python -m tests.launch.fake_ranks RUNG WORLD_SIZE,fsdp|hybrid|ddp ...

torch's fake process group has as many ranks as are asked for and moves nothing, and fake tensors have shapes and no
memory. Model, sharding and optimizer are those of `lerope train`; blocks are not compiled. Prints bytes, with one row
at a time, for each number of ranks and way to share.
"""

import sys
import weakref

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lerope
from lerope.core.ladder import rung
from lerope.model.transformer import Transformer
from lerope.train import checkpoint
from lerope.train.parallel import Ranks, _shard

LENGTH = 2048


class Held(TorchDispatchMode):
    """Bytes of all tensors that are there, after each operation; FSDP2 also empties and fills those it has."""

    def __init__(self):
        super().__init__()
        self.most = 0
        self._storages = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local part comes by in a moment
        out = function(*args, **(kwargs or {}))
        is_new = False
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                found = self._storages.get(storage._cdata)
                if found is None or found() is None:
                    self._storages[storage._cdata] = weakref.ref(storage)
                    is_new = True
        if is_new:
            self.most = max(self.most, self._total())
        return out

    def _total(self):
        total = 0
        for key, found in list(self._storages.items()):
            storage = found()
            if storage is None:
                del self._storages[key]
            else:
                total += storage.nbytes()
        return total


def held_bytes(name, world_size, parallel):
    """The most bytes that the first rank holds in two micro-batches, in the second of which there are gradients.

    The optimizer's own step, which is in place, is left out: DTensor would try it on whole tensors first, which here
    count as much as real ones.
    """
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    encoding = lerope.LeRoPE(rung(name).head_dim).to("meta")
    with torch.device("meta"):
        model = Transformer(rung(name), encoding)
    model.use_kernel("reference")
    if parallel != "ddp":
        _shard(model, parallel, Ranks(0, world_size, min(8, world_size), torch.device("cpu")))
    with FakeTensorMode(allow_non_fake_inputs=True), Held() as held:
        model.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(lerope.param_groups(model, 1e-3, 0.1), fused=True)
        checkpoint.prepare_moments(optimizer, 0)
        tokens = torch.zeros(1, LENGTH, dtype=torch.long)
        positions = torch.arange(LENGTH)[None]
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(tokens, positions, targets=tokens)
            loss.backward()
    dist.destroy_process_group()
    return held.most


if __name__ == "__main__":
    name, *ways = sys.argv[1:]
    for way in ways:
        number, _, parallel = way.partition(",")
        print(held_bytes(name, int(number), parallel))
