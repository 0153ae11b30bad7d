"""Pure losses and label channels: no model, no client loop, no I/O."""

from fedjax_ssl.objectives.agreement import agreement_vote, inter_client_kl
from fedjax_ssl.objectives.channel_checks import (
    check_correspondence,
    check_observed,
    check_set_priors,
    check_test_prior,
)
from fedjax_ssl.objectives.channels import (
    Channel,
    channel_cross_entropy,
    channel_cross_entropy_on_probs,
    channel_log_probs,
    correspondence_channel,
    identity_channel,
    is_observable,
    pad_channel,
    set_channel,
)
from fedjax_ssl.objectives.consistency import (
    annealed_cross_entropy,
    fixmatch_loss,
    linear_ramp,
    training_signal_ceiling,
    uda_loss,
)
from fedjax_ssl.objectives.correspondence import correspondence_counts, estimate_correspondence, normalize_counts
from fedjax_ssl.objectives.cross_entropy import (
    batch_cross_entropy,
    clipped_cross_entropy,
    cross_entropy,
    soft_cross_entropy,
)
from fedjax_ssl.objectives.identifiability import (
    Identifiability,
    MatrixDiagnostics,
    assess_identifiability,
    diagnose_matrix,
    identifiability_warnings,
    posterior_constraints,
)
from fedjax_ssl.objectives.l1 import l1_norm
from fedjax_ssl.objectives.mean_teacher import consistency, consistency_ramp, teacher_decay
from fedjax_ssl.objectives.mixup import mixup, mixup_cross_entropy, mixup_share
from fedjax_ssl.objectives.proportions import proportion_loss
from fedjax_ssl.objectives.prototypes import (
    class_prototypes,
    fill_missing_prototypes,
    helper_pseudo_labels,
    mean_prototypes,
    prototype_log_probs,
    sharpen,
)
from fedjax_ssl.objectives.sharpness import divergence_from, sharpness_ascent
from fedjax_ssl.objectives.virtual_adversarial import mean_entropy, vat_direction, vat_loss, vat_rampup
