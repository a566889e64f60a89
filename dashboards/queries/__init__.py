"""The named expressions behind panels and alerts, a module each for what they are about; each takes a scope.

A panel and the alert about it call the same function, so they cannot disagree. Every result is one series per run
unless the docstring says otherwise, and empty some minutes after the run stops reporting.
"""
