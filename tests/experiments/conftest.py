"""The scripts import `tables` beside them, as Python finds it when it runs one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))
