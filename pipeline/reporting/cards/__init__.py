"""Texts that describe the dataset of a run to others, made from its stored counts."""

from pipeline.reporting.cards.croissant import make_croissant
from pipeline.reporting.cards.dataset_card import make_dataset_card
from pipeline.reporting.cards.eu_summary import make_eu_summary

__all__ = ["make_croissant", "make_dataset_card", "make_eu_summary"]
