"""One-shot prediction at the end of a run (XCLP, section 4): labels for new examples by the
network, or by propagation over graphs.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.prediction.graphs import (
        Embedding,
        Points,
        Predictions,
        by_codes,
        by_cosines,
        points_of,
        predict_with_graphs,
        random_groups,
    )
    from fedjax_ssl.prediction.one_shot import predict

__getattr__, __dir__ = attach(__name__)
