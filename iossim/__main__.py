"""``python -m iossim``."""

import sys

from iossim.cli.main import main

sys.exit(main())
