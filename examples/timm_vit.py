"""Learned frequencies in timm's rotary vision transformers: one set for both axes of the image, as timm has it.

Needs timm (tried with 1.0.30).
"""

import timm
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, build_rotary_pos_embed
from torch import Tensor, nn

import lerope


class LearnedRotary(nn.Module):
    """In place of timm's RotaryEmbeddingCat: the same table of sines and cosines, with a gradient for its bands."""

    def __init__(self, rope: RotaryEmbeddingCat) -> None:
        super().__init__()
        self.encoding = lerope.LeRoPE.starting_at(rope._compute_bands())
        self.shape = rope.feat_shape
        names = ("in_pixels", "ref_feat_shape", "grid_offset", "grid_indexing", "rotate_half")
        self.options = {name: getattr(rope, name) for name in names}

    def update_feat_shape(self, shape: list[int]) -> None:
        self.shape = shape

    def get_embed(self, shape: list[int] | None = None) -> Tensor:
        frequencies = self.encoding.frequencies()
        return torch.cat(build_rotary_pos_embed(shape or self.shape, frequencies, **self.options), dim=-1)


def main(steps: int = 10) -> None:
    torch.manual_seed(0)
    sizes = {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 3, "num_classes": 4}
    model = timm.create_model("vit_small_patch16_rope_224", **sizes).eval()
    images = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        before = model(images)
        model.rope = LearnedRotary(model.rope)
        print(f"largest change of the logits: {(model(images) - before).abs().max():.1e}")

    model.train()
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-3, weight_decay=0.05))
    for _ in range(steps):
        labels = torch.randint(4, (8,))
        images = torch.randn(8, 3, 64, 64)
        for image, label in zip(images, labels, strict=True):  # a bright patch says which class it is
            image[:, 16 * label : 16 * label + 16, 16 * label : 16 * label + 16] += 2.0
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        lerope.check_gradients(model)  # looks at the gradients that are there
        lerope.clip_grad_norm_(model, max_norm=1.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}, log-scales {model.rope.encoding.alpha.detach().numpy().round(4)}")


if __name__ == "__main__":
    main()
