"""Ask one question, in one line.

    fedjax-ssl run my_study/my_study.py                     # the method in my_study_method.py
    fedjax-ssl run my_study/my_study.py:fedavg              # another method on the same federation
    fedjax-ssl run my_study/my_study.py --method.entropy_weight=0.3 --seed=1 --workdir runs/other
    fedjax-ssl run my_study/my_study.py --help all          # every setting, its value and meaning

Then say here what came out, in how long, on what hardware.
"""

from fedjax_ssl import presets

OWN = "my_study_method:entropy_minimization"


def get_config(argument=OWN, method=None, rounds=None, place=None):
    """Return the config.

    Args:
        argument: what follows the colon: a method, your own or one of `fedjax-ssl list methods`.
        method: in its place, where --method.name is given.
        rounds: where --rounds is given; stages keep their share.
        place: where labels are, where a sweep compares several methods.
    """
    # Your own data: presets.source("npz", ...), and --data.path=FILE.npz on the command line.
    return presets.source("digits", argument, method, rounds or 60, place)
