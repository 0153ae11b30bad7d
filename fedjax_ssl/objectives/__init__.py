"""Pure losses and label channels: no model, no client loop, no I/O.

Example:
    >>> logits = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> mask = jnp.array([True, True])
    >>> targets = jnp.array([0, -1])  # -1: no label
    >>> round(float(fs.objectives.batch_cross_entropy(logits, targets, mask)), 4)
    0.0635
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.objectives.agreement import (
        agreement_vote,
        annealed_cross_entropy,
        consistency,
        consistency_ramp,
        fixmatch_loss,
        inter_client_kl,
        linear_ramp,
        soft_label_divergence,
        teacher_decay,
        training_signal_ceiling,
    )
    from fedjax_ssl.objectives.channel_checks import (
        channel_warnings,
        check_correspondence,
        check_observed,
        check_set_priors,
        check_test_prior,
        is_constant,
        open_directions,
        open_note,
        posterior_constraints,
    )
    from fedjax_ssl.objectives.channels import (
        Channel,
        channel_cross_entropy,
        channel_cross_entropy_on_probs,
        channel_log_probs,
        correspondence_channel,
        correspondence_counts,
        identity_channel,
        is_observable,
        normalize_counts,
        pad_channel,
        set_channel,
    )
    from fedjax_ssl.objectives.cross_entropy import (
        RowLoss,
        at_least_float32,
        batch_cross_entropy,
        batch_mean,
        clipped_cross_entropy,
        cross_entropy,
        l1_norm,
        mixup,
        mixup_cross_entropy,
        mixup_share,
        most_negative,
        proportion_loss,
        soft_cross_entropy,
    )
    from fedjax_ssl.objectives.freematch import (
        FreeMatch,
        class_fairness,
        freematch_start,
        freematch_thresholds,
        freematch_update,
    )
    from fedjax_ssl.objectives.perturbation import (
        divergence_from,
        mean_entropy,
        sharpness_ascent,
        vat_direction,
    )
    from fedjax_ssl.objectives.prototypes import (
        class_prototypes,
        fill_missing_prototypes,
        helper_pseudo_labels,
        mean_prototypes,
        prototype_log_probs,
        sharpen,
    )
    from fedjax_ssl.objectives.supervised import INVERSE, LOSSES, supervised_loss

__getattr__, __dir__ = attach(__name__)
