"""Carries dashboards and alerts to a target: renders, checks, delivers."""
