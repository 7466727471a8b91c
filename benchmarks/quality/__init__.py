"""Benchmarks of the decisions: is the right text kept?"""
