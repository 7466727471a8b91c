"""Sharded checkpoints with digests, written in the background and loadable on any number of ranks.

    run_dir/checkpoints/step-00000100/__0_0.distcp ... .metadata    torch.distributed.checkpoint
                                     /complete.json                 written last

`complete.json` has the step, the loader's state, counters, and the digests of the other files. A
folder without it is ignored. All bytes that a rank loads are compared with these digests first.
"""
