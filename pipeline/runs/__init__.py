"""The run folder: outputs of phases, the run lock and the event log."""
