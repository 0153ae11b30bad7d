"""Pure losses and label channels: no model, no client loop, no I/O."""

from fedjax_ssl.objectives.cross_entropy import batch_cross_entropy, cross_entropy
from fedjax_ssl.objectives.mean_teacher import consistency, consistency_ramp, teacher_decay

__all__ = ["batch_cross_entropy", "consistency", "consistency_ramp", "cross_entropy", "teacher_decay"]
