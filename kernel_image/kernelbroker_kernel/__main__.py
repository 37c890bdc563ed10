"""`python -m kernelbroker_kernel`: start the gateway. `contract.GATEWAY_MODULE` has the options."""

from __future__ import annotations

import sys
from typing import Any

# jsonschema would import it to check IRIs, which no schema of the gateway has. It compiles a grammar
# at import, which takes two thirds of the gateway's start.
modules: dict[str, Any] = sys.modules
modules["rfc3987_syntax"] = None

from .gateway import main  # noqa: E402

sys.exit(main())
