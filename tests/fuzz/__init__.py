"""Broken model folders, inputs and examples, thousands of them: no run may end in a traceback.

    python -m tests.fuzz --minutes 30          all kinds, from random seeds
    python -m tests.fuzz --folders 10000 --inputs 5000 --seed 1
    python -m tests.fuzz --case folder:1234    one case again, with its traceback

A case is a kind and a number, and all that it does follows from these two: `folders`, `inputs`,
`learning` and `states` make files and commands of them, `judge` runs the commands in this process
and says what is wrong with what they did, `pool` does so in processes that may hang, crash or eat
all memory.
"""

import sys
from pathlib import Path

HELPERS = str(Path(__file__).parents[1] / "support")
if HELPERS not in sys.path:  # `python -m tests.fuzz` in the repository
    sys.path.append(HELPERS)
