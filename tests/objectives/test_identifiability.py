import numpy as np
import pytest

from fedjax_ssl.objectives import (
    channel_warnings,
    open_directions,
    open_note,
    posterior_constraints,
)
from tests.objectives.fedul_fixture import POSTERIOR, SET_PRIORS, SET_SHARES, TEST_PRIOR, set_matrix

COARSE = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
FIRST = set_matrix(np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2]]), np.array([0.6, 0.4]), TEST_PRIOR)
SECOND = set_matrix(np.array([[0.2, 0.2, 0.6], [0.5, 0.3, 0.2]]), np.array([0.5, 0.5]), TEST_PRIOR)
NOTHING = np.zeros((0, 3))


def test_two_clients_with_two_sets_identify_three_classes_together() -> None:
    """FedUL section 14, check 12."""
    for matrix, expected in ((FIRST, 0.6715843489), (SECOND, 0.4163424125)):
        seen = matrix @ POSTERIOR
        np.testing.assert_allclose(seen / seen.sum(), [expected, 1 - expected], atol=1e-10)
    assert open_directions([FIRST, SECOND], POSTERIOR) == 0 and open_note(0, 3) == []
    sets = set_matrix(SET_PRIORS, SET_SHARES, TEST_PRIOR)
    for matrices in ([FIRST, SECOND], [np.eye(3), sets, NOTHING]):
        assert channel_warnings(matrices) == []


def test_one_client_alone_does_not_and_a_sentence_says_so() -> None:
    assert open_directions([FIRST]) == 1
    (note,) = open_note(1, 3)
    assert "does not identify the class posterior: 1 of 2 directions" in note


@pytest.mark.parametrize(
    ("matrices", "identified"),
    [
        ([np.eye(3)], True),
        ([NOTHING, np.eye(3), COARSE], True),
        ([COARSE, FIRST], True),
        ([COARSE, COARSE, NOTHING], False),
        ([NOTHING, NOTHING], False),
        ([set_matrix(SET_PRIORS, SET_SHARES, TEST_PRIOR)], True),
        # Rank 2: four sets whose proportions of the third class are the same.
        (
            [np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.35, 0.45, 0.2], [0.41, 0.39, 0.2]])],
            False,
        ),
        ([np.ones((1, 3)), FIRST], False),
    ],
)
def test_mixed_federations(matrices: list, identified: bool) -> None:
    assert (open_directions(matrices) == 0) is identified


def test_constraints_hold_at_the_posterior_and_empty_rows_add_none() -> None:
    rows = posterior_constraints([FIRST, COARSE, NOTHING, np.eye(3)], POSTERIOR)
    assert rows.shape == (1 + 1 + 2, 3)
    np.testing.assert_allclose(rows @ POSTERIOR, 0.0, atol=1e-15)
    with_empty = np.concatenate([FIRST, np.zeros((1, 3))])
    np.testing.assert_array_equal(posterior_constraints([with_empty], POSTERIOR), rows[:1])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.3, 0.3, 0.4]], "Client 1: there is only one set, so the loss is constant"),
        ([[0.2, 0.5, 0.3], [0.4, 1.0, 0.6]], "Client 1: all sets have the same class proportions"),
        ([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]], "Client 1: classes 2 occur in no set"),
    ],
)
def test_each_weakness_of_a_client_is_named(matrix: list, message: str) -> None:
    texts = channel_warnings([np.eye(3), np.array(matrix)])
    assert any(text.startswith(message) for text in texts), texts


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"matrices have \[2, 3\] columns"):
        open_directions([np.eye(3), np.eye(2)])
    with pytest.raises(ValueError, match="at least one client is needed"):
        open_directions([])
