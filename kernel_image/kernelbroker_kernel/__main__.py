"""`python -m kernelbroker_kernel`: start the gateway. The options stand in `contract.py`."""

from __future__ import annotations

import sys
from typing import Any

# The gateway would load it for jsonschema, to check IRIs, which no schema of the gateway's asks for;
# it compiles a grammar at import, for two thirds of the time that a gateway takes to start.
modules: dict[str, Any] = sys.modules
modules["rfc3987_syntax"] = None

from .gateway import main  # noqa: E402

sys.exit(main())
