"""The engine that runs tasks on Ray."""
