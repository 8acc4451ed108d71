"""gRPC plumbing shared by every service: channels, servers, errors, deadlines, proto <-> dataclass. No torch."""

from __future__ import annotations

import os

# gRPC's core writes its own lines to stderr (a port in use, a peer that went away); what matters of them reaches us
# as statuses and exceptions. It reads the variable when `grpc` is first imported. Set it to INFO to see them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
