"""Vision transformers ViT-S/16 and ViT-B/16."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import Whole
from fedjax_ssl.models.layers import Conv, Dense, Network, count_operations
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask

Size = Annotated[int, Whole(1)]
EPSILON = 1e-6  # is added to variances of layer norm
WIDER = 4  # hidden units of a block per value of a token
START = nn.initializers.truncated_normal(0.02)


def _norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(EPSILON, use_fast_variance=False, name=name)


class Attention(nn.Module):
    """Self-attention of several heads over the tokens of an example."""

    heads: int

    @nn.compact
    def __call__(self, tokens: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        number, length, dim = tokens.shape
        each = dim // self.heads
        three = Dense(3 * dim, START, name="qkv")(tokens)
        query, key, value = jnp.moveaxis(three.reshape(number, length, 3, self.heads, each), 2, 0)
        scores = jnp.einsum("nqhe,nkhe->nhqk", query * each**-0.5, key)
        mixed = jnp.einsum("nhqk,nkhe->nqhe", jax.nn.softmax(scores), value)
        count_operations(self, 4 * length**2 * dim)
        return Dense(dim, START, name="proj")(mixed.reshape(number, length, dim))


class Block(nn.Module):
    """Attention, then two dense layers on each token, each after a layer norm and around an
    identity.
    """

    heads: int

    @nn.compact
    def __call__(self, tokens: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        dim = tokens.shape[-1]
        tokens = tokens + Attention(self.heads, name="attention")(_norm("norm1")(tokens))
        hidden = Dense(WIDER * dim, START, name="dense1")(_norm("norm2")(tokens))
        hidden = nn.gelu(hidden, approximate=False)
        return tokens + Dense(dim, START, name="dense2")(hidden)


class ViTS16(Network):
    """ViT-S/16: an image as 16 x 16 patches, 12 blocks of attention on 384 values a token, the
    class token's, one affine map.

    The feature has 384 values. 22,050,664 parameters for 224 x 224 images of three channels and
    1000 classes. Layers are those of timm's `vit_small_patch16_224`, whose weights it can start
    from. Weights start normal, truncated, of deviation 0.02.

    Sources: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021. Touvron et al., Training
    data-efficient image transformers, ICML 2021 (the small one).

    Attributes:
        weights: path of a file with the arrays of timm's or torchvision's state dict to start from,
            see `pretrained.pretrained`; None or "" starts at random.
        side: images are brought to so many pixels first (bilinear); None: they stay as they are.
            Published weights are for 224.
        patch: pixels along a side of a patch.
        dim: values of a token.
        depth: number of blocks.
        heads: of attention.
        recompute: compute each block again for its gradient, and keep only what goes into it: the
            memory of activations falls to about that of one block, and a step takes longer.
    """

    weights: str | None = None
    side: Annotated[int | None, Whole(1)] = None
    patch: Size = 16
    dim: Size = 384
    depth: Size = 12
    heads: Size = 6
    recompute: bool = False

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        number, *sides, channels = inputs.shape
        if self.side is not None:
            sides = [self.side, self.side]
            inputs = jax.image.resize(inputs, (number, *sides, channels), "bilinear")
        if any(side % self.patch for side in sides):
            raise ValueError(
                f"images are {sides[0]} x {sides[1]}, no multiples of patch={self.patch}; bring "
                "them to another size with side, 224 for published weights"
            )
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} is no multiple of heads={self.heads}")
        cut = Conv(self.dim, self.patch, self.patch, 0, lowering="lax", name="patches")
        patches = cut(inputs).reshape(number, -1, self.dim)
        default = jnp.result_type(float)
        token = self.param("cls_token", START, (1, 1, self.dim), default)
        place = self.param("pos_embed", START, (1, patches.shape[1] + 1, self.dim), default)
        tokens = jnp.concatenate([jnp.tile(token, (number, 1, 1)), patches], axis=1) + place
        block = nn.remat(Block) if self.recompute else Block
        for number in range(self.depth):
            tokens = block(self.heads, name=f"block{number}")(tokens)
        return self.scores(_norm("norm")(tokens[:, 0]), START)


class ViTB16(ViTS16):
    """ViT-B/16: as `ViTS16`, with 768 values a token and 12 heads.

    86,567,656 parameters for 224 x 224 images of three channels and 1000 classes. Layers are those
    of torchvision's `vit_b_16` and timm's `vit_base_patch16_224`.
    """

    dim: Size = 768
    heads: Size = 12
