"""`python -m kernelbroker_kernel`: start the gateway. The options stand in `contract.py`."""

from __future__ import annotations

import sys

from .gateway import main

sys.exit(main())
