"""How a model's inputs are standardized where each client has a mean and a deviation of its own."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ssl.data.dataset import in_one_form, rows_of
from fedjax_ssl.data.federation.federated_data import client_number
from fedjax_ssl.data.standardization import statistics_of
from fedjax_ssl.errors import counted, note
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.runs.model_file import TrainedModelError

FEW = 20  # examples of a new site, of which fewer say little of its mean and deviation
Client = int | str | Sequence[int | str] | None
Scale = tuple[np.ndarray, np.ndarray]  # subtracted from an input, which is then divided by


def whose_inputs(client: Any, count: int) -> Client:
    """Return the owners of inputs: one client, or a list of one for each of these.

    Raises:
        TrainedModelError: there are more or fewer.
    """
    if isinstance(client, np.integer):
        return int(client)
    if client is None or isinstance(client, int | str):
        return client
    whose = list(map(str, client))
    if len(whose) != count:
        raise TrainedModelError(
            f"client has {counted(len(whose), 'name')} for {counted(count, 'input')}; give one for "
            "each, or one for all"
        )
    return whose


class Scales:
    """Means and deviations by client; none where a run standardizes all inputs alike."""

    def __init__(self, inputs: Mapping[str, Any]):
        """Take the facts about inputs in `model.json`."""
        self._inputs = inputs
        self._known: dict[str, Any] = dict(inputs.get("clients") or {})

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def names(self) -> list[str]:
        """Clients whose mean and deviation are known."""
        return list(self._known)

    def find(self, client: Any) -> str | None:
        """Find a known client by its name, or by its number where no name is one."""
        number = None if client is None else client_number(self.names, client)
        return None if number is None else self.names[number]

    def has(self, name: str) -> bool:
        """Tell whether a client of this name is known."""
        return in_one_form(name) in map(in_one_form, self._known)

    def add(self, name: str, values: np.ndarray) -> None:
        """Keep mean and deviation of a client's inputs."""
        self._known[name] = self._of_new_site(name, values)

    def known(self, name: str) -> Scale:
        """Give those of a known client, on the scale of stored inputs."""
        return self._stored(self._known[name])

    def of(self, values: np.ndarray, client: Client) -> Scale | None:
        """Find mean and deviation of the client that has all inputs, or of each row's; None: all
        inputs are alike. A client that is not known has those of its own inputs here.

        Raises:
            TrainedModelError: the client of all inputs is not known, but misspelt.
        """
        if not self:
            return None
        if not isinstance(client, list):
            if client is not None and self.find(client) is None:
                self._check_spelling(str(client))
            return self._of_one(values, client)
        shape = (len(values), *[1] * (values.ndim - 2), values.shape[-1])
        center = np.zeros(shape, np.float32)
        width = np.ones(shape, np.float32)
        for one, rows in rows_of(client).items():
            center[rows], width[rows] = self._of_one(values[rows], one)
        return center, width

    def _of_one(self, values: np.ndarray, client: Any) -> Scale:
        name = self.find(client)
        return self._stored(
            self._of_new_site(client, values) if name is None else self._known[name]
        )

    def _check_spelling(self, client: str) -> None:
        """Refuse a name with the letters of a known one in another order, or one letter more or
        less; other digits are another site.
        """
        letters = Counter(client.casefold())
        for name in self._known:
            known = Counter(name.casefold())
            differ = ((letters - known) + (known - letters)).total()
            if len(name) > 3 and differ < 2 and _digits(name) == _digits(client):
                raise TrainedModelError(
                    f"client {client!r} is no client of the run. Did you mean {name!r}? A new site "
                    "needs a name that is less like it"
                )

    def apply(self, scale: Scale, inputs: Any) -> Any:
        """Standardize inputs by their client's mean and deviation, to the common ones."""
        center, width = scale
        middle, spread = self._stored(self._inputs)
        return (inputs - center) / width * spread + middle

    def _stored(self, own: Mapping[str, Any]) -> Scale:
        largest = np.float32(self._inputs["max"])
        return np.asarray(own["mean"], np.float32) * largest, np.asarray(own["std"], np.float32)

    def _of_new_site(self, client: Any, values: np.ndarray) -> dict[str, list[float]]:
        """Compute mean and deviation of inputs of a client that the run did not have; say so."""
        if not len(values):
            return {"mean": [0.0], "std": [1.0]}
        who = "no client is named: the"
        if client and self.has(str(client)):
            who = f"{client!r}: its"
        elif client:
            who = f"{client!r} is no client of the run.{did_you_mean(client, self.names)} Its"
        few = ""
        if len(values) < FEW:
            few = "; so few say little of a site: predictions are unsure, give more of them at once"
        if len(values) == 1 and values.ndim == 2:
            few = "; nothing is left of a single one, and its prediction says nothing: give more"
        note(
            f"{who} inputs are standardized by mean and deviation of these "
            f"{counted(len(values), 'example')} alone, as those of a new site{few}"
        )
        return statistics_of(values, self._inputs["max"])[0]


def _digits(name: str) -> list[str]:
    return re.findall(r"\d+", name)
