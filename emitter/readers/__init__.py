"""Readers of training logs: physical lines in, records out. One module for each family of layouts."""
