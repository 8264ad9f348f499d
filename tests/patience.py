"""How long a test waits for what must come, on a machine however busy: only a guard against hanging."""

PATIENCE_S = 100.0
