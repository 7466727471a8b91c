"""What `stages_table` measures: tasks of a run, and bare library calls."""
