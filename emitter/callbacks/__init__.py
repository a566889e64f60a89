"""Training frameworks told to a `TrainingRun`: a module each, imported only by those who have the framework."""
