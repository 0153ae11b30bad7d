"""Mean teacher: the student agrees with a moving average of itself.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_mean_teacher.py
    python -m fedjax_ssl.main --config configs/digits_mean_teacher.py:10  # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_mean_teacher.py:server,20

Student and teacher see views that are moved by up to a pixel. Predictions are the teacher's, which
is sent as well. See docs/methods/baselines.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "mean_teacher")
