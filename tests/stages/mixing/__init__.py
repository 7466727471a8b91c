"""Tests of stages.mixing."""
