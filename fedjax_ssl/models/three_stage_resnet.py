"""Small residual network of three stages, as He et al. use it on CIFAR-10."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.models.layers import Network
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask
from fedjax_ssl.models.resnet import BasicBlock, ConvNorm


class ThreeStageResNet8(Network):
    """ResNet-8: a 3x3 convolution, three basic blocks with 16k, 32k and 64k channels, global average, one affine map.

    The first convolution has 16k channels. The feature has 64k values. 1,227,594 parameters with 10 classes
    and k = 4, 1,250,724 with 100 classes (three input channels, batch norm). Convolutions start Kaiming normal
    (fan-out), the head as PyTorch's default. Where the shape changes, a 1x1 convolution and a norm layer take the
    place of the identity.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2, with n = 1 and k times the
    width, as the code of SAGE has it.

    Attributes:
        widen: the factor k on all widths.
        norm: "bn" or "none"; "gn" where all channels divide by 32.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    widen: int = 4
    norm: str = "bn"
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_whole_numbers(widen=self.widen)
        x = ConvNorm(16 * self.widen, 3, 1, self.norm, self.lowering, name="stem")(inputs, train, mask)
        x = nn.relu(x)
        for stage, filters in enumerate((16, 32, 64), 1):
            block = BasicBlock(
                self.widen * filters, 1 if stage == 1 else 2, self.norm, self.lowering, name=f"block{stage}"
            )
            x = block(x, train, mask)
        return self.scores(jnp.mean(x, (1, 2)))
