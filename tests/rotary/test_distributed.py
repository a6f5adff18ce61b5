"""Two gloo processes: DDP and FSDP2 give alpha the gradient of one process and leave it in float32."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lerope
from tests.ranks import run_ranks

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96, bias=False)

    def forward(self, x, rotate):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).unbind(-3)
        q, k = rotate(q, k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


class Model(nn.Module):
    """Builds one rotation per forward pass, or lets every block call the encoding."""

    def __init__(self, encoding: lerope.Encoding, once: bool, reentrant: bool = False):
        super().__init__()
        self.encoding, self.once, self.reentrant = encoding, once, reentrant
        self.inp = nn.Linear(8, 32, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        h = self.inp(x)
        positions = torch.arange(h.shape[1])
        rotation = self.encoding.rotation(positions) if self.once else None
        for i, block in enumerate(self.blocks):
            rotate = rotation or (lambda q, k, i=i: self.encoding(q, k, positions, layer=i))
            h = checkpoint(block, h, rotate, use_reentrant=True) if self.reentrant else block(h, rotate)
        return h.float().square().mean()


def make(once: bool = True, reentrant: bool = False, **kwargs) -> Model:
    torch.manual_seed(0)
    model = Model(lerope.LeRoPE(16, **kwargs), once, reentrant)
    with torch.no_grad():
        noise = torch.randn(model.encoding.alpha.shape, generator=torch.Generator().manual_seed(3))
        model.encoding.alpha.mul_(1 + 0.1 * noise).add_(0.2 * noise if model.encoding.parametrization == "log" else 0)
    return model


def batch() -> torch.Tensor:
    return torch.randn(4, 24, 8, generator=torch.Generator().manual_seed(1))


def shard(model: Model, policy: MixedPrecisionPolicy) -> Model:
    """The recipe of the documentation: the encoding is a unit of its own, before the model."""
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model.encoding, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_ddp(rank: int) -> None:
    mine = batch()[2 * rank : 2 * rank + 2]
    for kwargs in ({"once": True}, {"once": False}, {"once": False, "sharing": "layer", "num_layers": 3}):
        single = make(**kwargs)
        single(batch()).backward()
        model = DistributedDataParallel(make(**kwargs))
        model(mine).backward()
        alpha = model.module.encoding.alpha
        assert alpha.dtype == torch.float32
        assert relative(alpha.grad, single.encoding.alpha.grad) < 1e-5
    # Three checkpointed blocks share one parameter: DDP needs to be told that the graph is static.
    single = make(once=False)
    single(batch()).backward()
    model = DistributedDataParallel(make(once=False, reentrant=True), static_graph=True)
    mine = mine.clone().requires_grad_()
    model(mine).backward()
    assert relative(model.module.encoding.alpha.grad, single.encoding.alpha.grad) < 1e-5


def check_ddp_bf16(rank: int) -> None:
    """A model cast to bf16: alpha and its gradient stay float32 and ranks agree with one process."""
    single = make().to(torch.bfloat16)
    single(batch().bfloat16()).backward()
    model = DistributedDataParallel(make().to(torch.bfloat16))
    model(batch()[2 * rank : 2 * rank + 2].bfloat16()).backward()
    alpha = model.module.encoding.alpha
    assert alpha.dtype == alpha.grad.dtype == torch.float32
    assert relative(alpha.grad, single.encoding.alpha.grad) < 0.02


def check_fsdp(rank: int) -> None:
    mine = batch()[2 * rank : 2 * rank + 2]
    variants = (
        {"once": True},
        {"once": False},
        {"once": False, "sharing": "layer_head", "num_layers": 3, "num_heads": 2},
    )
    for kwargs in variants:
        single = make(**kwargs)
        single(batch()).backward()
        model = shard(make(**kwargs), MixedPrecisionPolicy())
        for _ in range(2):
            model.zero_grad()
            model(mine).backward()
            assert relative(whole(model.encoding.alpha.grad), single.encoding.alpha.grad) < 1e-5

        single = make(**kwargs).to(torch.bfloat16)
        single(batch().bfloat16()).backward()
        model = shard(make(**kwargs), BF16)
        model(mine).backward()
        alpha = model.encoding.alpha
        assert alpha.dtype == alpha.grad.dtype == torch.float32
        assert relative(whole(alpha.grad), single.encoding.alpha.grad) < 0.02
        assert torch.equal(model.encoding.artifact().tensor(), make(**kwargs).encoding.artifact().tensor())

        # One optimizer step by the float32 rule, and the two sets of gradients clipped on their own.
        norms = lerope.clip_grad_norm_(model, max_norm=1e-3, frequency_max_norm=1e-4)
        assert relative(whole(alpha.grad).norm(), torch.tensor(1e-4)) < 1e-2
        assert relative(norms.frequencies, whole(single.encoding.alpha.grad).norm()) < 0.02
        torch.optim.SGD(lerope.param_groups(model, lr=1.0, weight_decay=0.0)).step()
        moved = whole(alpha.detach()) - make(**kwargs).encoding.alpha.detach()
        assert relative(moved.norm(), torch.tensor(1e-4)) < 2e-2


def check_fsdp_guards(rank: int) -> None:
    """Without a unit of its own alpha would silently be bf16: that is an error, and it says what to do."""
    model = fully_shard(make(), mesh=init_device_mesh("cpu", (2,)), mp_policy=BF16)
    with pytest.raises(ValueError, match=r"LeRoPE has a parameter in torch.bfloat16.*fully_shard\(encoding\)"):
        model(batch())


def check_fsdp_meta(rank: int) -> None:
    """Built on the meta device, sharded, allocated: frequencies start exactly as RoPE, whatever the parametrization."""
    for parametrization in ("log", "linear", "direct"):
        with torch.device("meta"):
            model = Model(lerope.LeRoPE(16, parametrization=parametrization), once=True)
        shard(model, BF16).to_empty(device="cpu")
        assert isinstance(model.encoding.alpha, DTensor)
        assert torch.equal(model.encoding.frequencies(), lerope.RoPE(16).frequencies())


def check_mixed_clipping(rank: int) -> None:
    """Plain tensors and DTensors in one model: the norm is that of the whole."""
    model = nn.ModuleDict({"sharded": nn.Linear(8, 8, bias=False), "plain": nn.Linear(4, 4, bias=False)})
    reference = copy.deepcopy(model)
    fully_shard(model["sharded"], mesh=init_device_mesh("cpu", (2,)))
    for module in (model, reference):
        for p in module.parameters():
            grad = torch.arange(p.numel(), dtype=torch.float32).view(p.shape)
            p.grad = torch.distributed.tensor.distribute_tensor(grad, p.device_mesh) if isinstance(p, DTensor) else grad
    want = lerope.clip_grad_norm_(reference, 1.0).model
    assert torch.isclose(lerope.clip_grad_norm_(model, 1.0).model, want)
    for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(whole(got.grad), expected.grad)


def check_all(rank: int, names: list[str]) -> None:
    for name in names:
        globals()[name](rank)
        dist.barrier()


@pytest.mark.parametrize(
    "names",
    [
        ["check_ddp", "check_ddp_bf16"],
        ["check_fsdp", "check_fsdp_guards", "check_fsdp_meta", "check_mixed_clipping"],
    ],
    ids=["ddp", "fsdp2"],
)
def test_two_ranks(names, tmp_path):
    run_ranks(check_all, tmp_path, names)
