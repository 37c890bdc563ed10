"""`python -m kernelbroker_kernel`: start the gateway. `contract.GATEWAY_MODULE` has the options."""

from __future__ import annotations

import sys

from .unused_imports import FORMATS, left_out

with left_out(*FORMATS):
    from .gateway import main

sys.exit(main())
