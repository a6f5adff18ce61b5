"""Initial weights do not depend on how a model is sharded."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lerope
from lerope.core.ladder import ModelConfig
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from tests.ranks import run_ranks

CONFIG = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)


def check_init(rank: int) -> None:
    single = Transformer(CONFIG, lerope.LeRoPE(16, parametrization="direct"))
    init_weights(single, 5)
    with torch.device("meta"):
        model = Transformer(CONFIG, lerope.LeRoPE(16, parametrization="direct"))
    mesh = init_device_mesh("cpu", (2,))
    for module in (model.encoding, *model.blocks, model):
        fully_shard(module, mesh=mesh)
    model.to_empty(device="cpu")
    init_weights(model, 5)
    for name, p in model.named_parameters():
        assert torch.equal(p.full_tensor(), single.get_parameter(name)), name


def test_two_ranks_start_as_one_does(tmp_path):
    run_ranks(check_init, tmp_path)
