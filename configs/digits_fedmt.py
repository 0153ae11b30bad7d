"""FedMT on real handwriting: writers only say of what kind a digit is, the server has a few digits
with their class.

The digits: 11 writers train with coarse labels, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fedmt.py  # 20 class labels, shape, known
    # even or odd, estimated matrix
    python -m fedjax_ssl.main --config configs/digits_fedmt.py:50,parity,estimated
    # baseline: transfer learning
    python -m fedjax_ssl.main --config configs/digits_fedmt.py:20,shape,fedtrans
    python -m fedjax_ssl.main --config configs/digits_fedmt.py \\
        # projection on all examples
        --config.method.projection_examples=all --config.method.gate=none

"shape": curved 0, 3, 6, 8, 9; straight 1, 4, 7; both 2, 5. Result over 5 seeds, time and hardware:
docs/methods/fedmt.md. Not an experiment of the paper.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(
    labels: presets.Count = 20,
    space: presets.Space = "shape",
    matrix: Literal["known", "estimated", "fedtrans"] = "known",
):
    if matrix == "fedtrans":  # which uses no matrix
        return presets.digits_with_coarse_labels("fedtrans", labels, space)
    config = presets.digits_with_coarse_labels("fedmt", labels, space)
    config.method.correspondence = matrix
    return config
