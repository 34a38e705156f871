"""``python -m livevoice``: the command line of :mod:`livevoice.engine.cli`."""

import sys

from .engine.cli import main

sys.exit(main())
