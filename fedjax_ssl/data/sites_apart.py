"""Sites whose inputs differ by more than their examples do, as scanners and units make them, and
the remedy; the same sentence in `data check`, runs, sweeps and reports.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # brings jax, which a report does not need
    from fedjax_ssl.data.dataset import Dataset

ALIKE = "--data.standardize=client makes them alike"
# Sites differ if their means are as far apart as examples of one site, in deviations.
APART = 1.0
FEWEST = 8  # fewest examples of a site for a meaningful mean
MOST = 1000  # examples of a site that are compared, evenly spaced


class Apart(NamedTuple):
    """Difference between sites.

    Attributes:
        sentence: the largest difference, and the remedy.
        by_client: whether standardizing by client is right, that is, every site with labels has
            several classes, so that the difference is not due to classes, and no cells are filled
            with medians of all sites.
    """

    sentence: str
    by_client: bool


def remedy(config: Mapping[str, Any]) -> str:
    """Return the setting that helps a model that predicts a single class.

    Args:
        config: config of its run, as a mapping.
    """
    longer = "train longer, or at another learning rate"
    natural = config["partition"].get("name") == "natural"
    if config["data"].get("standardize") == "client" or not natural:
        return longer
    return (
        "where sites differ in brightness or units, which `fedjax-ssl data check` says, "
        f"{_alike(config['data'].get('missing') == 'median')}; else {longer}"
    )


def _alike(median: bool) -> str:
    """Say what makes sites alike; cells filled with medians of all sites stand in its way."""
    return f"{ALIKE}, with data.missing=drop in place of median" if median else ALIKE


def sites_apart(dataset: "Dataset") -> Apart | None:
    """Find sites whose images differ in brightness, or whose features differ in size; None if there
    are none.
    """
    from fedjax_ssl.data.dataset import distinct

    train = dataset.train
    images = train.x.ndim == 4
    if train.client is None:
        return None
    of_site = {}
    for number in distinct(train.client).tolist():
        rows = np.flatnonzero(train.client == number)
        if len(rows) < FEWEST:
            continue
        looked_at = train.x[rows[:: -(-len(rows) // MOST)]]
        if dataset.views is not None:
            looked_at = looked_at[:, 0]
        # Images are compared by brightness alone.
        brightness = looked_at.mean(axis=(1, 2, 3), dtype=np.float64)[:, None] if images else None
        of_site[number] = looked_at if brightness is None else brightness
    if len(of_site) < 2:
        return None
    means = np.array([own.mean(axis=0, dtype=np.float64) for own in of_site.values()])
    within = np.mean([own.std(axis=0, dtype=np.float64) for own in of_site.values()], axis=0)
    ratio = means.std(axis=0) / np.where(within > 0, within, np.inf)
    worst = int(ratio.argmax())
    if ratio[worst] < APART:
        return None
    names = [
        str(one) if dataset.client_names is None else dataset.client_names[one] for one in of_site
    ]
    low = int(means[:, worst].argmin())
    high = int(means[:, worst].argmax())
    features = dataset.extra.get("features") or [f"number {i}" for i in range(means.shape[1])]
    what = "brightness of images" if images else f"feature {features[worst]!r}"
    several = all(
        len(set(train.y[(train.client == number) & (train.y >= 0)].tolist())) != 1
        for number in of_site
    )
    has_statistics = dataset.test is None or dataset.test.client is not None
    median = getattr(dataset.reading, "missing", None) == "median"
    advice = _alike(median)
    if not several:
        advice = "some sites have labels of one class alone, so it may be the classes that differ"
    said = (
        f"sites differ in the {what}: {means[low, worst]:.3g} on average at {names[low]!r}, "
        f"{means[high, worst]:.3g} at {names[high]!r}; {advice}"
    )
    return Apart(said, several and has_statistics and not median)
