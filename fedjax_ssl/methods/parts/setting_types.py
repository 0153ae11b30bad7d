"""Types of settings with their allowed values, which configs check and the help shows."""

from typing import Annotated

from jaxtyping import Array

from fedjax_ssl.checks import In, Whole

Weight = Annotated[float | Array, In("[0, inf)")]  # weight of a loss
Share = Annotated[float | Array, In("[0, 1]")]  # a share or a probability
Decay = Annotated[float | Array, In("[0, 1)")]
Positive = Annotated[float | Array, In("(0, inf)")]
Count = Annotated[int, Whole(1)]
CountOrZero = Annotated[int, Whole(0)]
# alpha of Beta(alpha, alpha), the distribution of mixing shares
BetaParameter = Annotated[float, In("(0, inf)")]
