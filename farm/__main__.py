"""`python -m farm` is the command `farm`."""

import sys

from farm.cli import main

sys.exit(main())
