"""Promises of the contract that private methods keep, whose noise lets no accuracy be asserted.

Padding with empty clients is none of them: the probability of taking part is a share of all clients.
"""

from fedjax_ssl.testing import promises


def keep_promises(build: promises.Build) -> None:
    """Check a method that is built for a toy federation."""
    trial = promises.trial_of(build, promises.Special())
    for promise in (
        promises.state_keeps_its_types_and_rounds_compile_once,
        promises.same_key_same_bits_other_key_other_result,
        promises.hidden_labels_do_not_leak,
        promises.resume_is_bit_exact,
        promises.predictions_are_normalized_log_probabilities,
        promises.lanes_train_every_client_as_if_alone,
    ):
        promise(trial)
