"""The trainer against a bare loop and a peer, on one GPU: `python -m benchmarks.training.gpu_suite`."""
