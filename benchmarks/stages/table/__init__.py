"""What `stages_table` measures: tasks of a run, bare library calls, and an earlier commit."""
