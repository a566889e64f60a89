"""Alert rules as facts, in no target's format."""
