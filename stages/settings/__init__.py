"""Settings of all stages: what a config may say about each of them.

They are apart from the stages, so that reading a config loads neither Arrow nor compiled kernels.
"""
