"""The chain and the loader in a loop, with random kills; memory and files are sampled."""
