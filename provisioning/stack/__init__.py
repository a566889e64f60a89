"""Local servers on loopback: found or fetched, started and stopped."""
