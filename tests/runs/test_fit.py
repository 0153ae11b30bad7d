import pytest

from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError, ConfigNote
from fedjax_ssl.data import FederatedData
from fedjax_ssl.runs.build import check_weighting, note_missing_labels
from tests import toy


def check(name: str, data: FederatedData, weighting: str = "labelled", **options) -> None:
    check_weighting(weighting, methods.build(name, toy.setup(data), **options), data)


@pytest.mark.parametrize(
    ("name", "kind", "count"), [("xclp", "labels", 1), ("semifl", "server", 6), ("fedul", "sets", 1)]
)
def test_training_of_clients_without_labels_is_not_thrown_away(name: str, kind: str, count: int) -> None:
    data = toy.weak_federation(kind)
    with pytest.raises(ConfigError, match=f"weighting is 'labelled', but {count} of 6 clients have no class labels"):
        check(name, data)
    for weighting in ("uniform", "examples"):
        check(name, data, weighting)


def test_weights_by_labels_fit_where_all_that_train_have_some() -> None:
    data = toy.federation()
    for name in ("fedavg", "per_client_lp", "single"):
        check(name, data)
    check("per_client_lp", toy.federation(labelled=(1,) * 6), unlabelled_clients=True)
    with pytest.raises(ConfigError, match="1 of 6 clients"):
        check("per_client_lp", data, unlabelled_clients=True)


def test_missing_labels_are_noted() -> None:
    data = toy.federation()
    with pytest.warns(
        ConfigNote, match="asks for 2 labelled examples of every class.* fewer of 11 of 15 classes, 3 of"
    ):
        note_missing_labels("per_class", 2, data)
    for supervision, labels in (("per_client", 2), ("all", None)):
        note_missing_labels(supervision, labels, data)
