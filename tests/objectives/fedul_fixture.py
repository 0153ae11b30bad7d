"""The worked example of the paper notes on sets with known class proportions (section 14)."""

import numpy as np

SET_PRIORS = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
SET_SHARES = np.array([0.4, 0.3, 0.2, 0.1])
TEST_PRIOR = np.array([0.5, 0.3, 0.2])
POSTERIOR = np.array([0.7, 0.2, 0.1])
SET_PROBS = np.array([0.500191204589, 0.262715105163, 0.143021032505, 0.094072657744])


def set_matrix(priors: np.ndarray, shares: np.ndarray, test_prior: np.ndarray) -> np.ndarray:
    return np.diag(shares) @ priors @ np.diag(1 / test_prior)
