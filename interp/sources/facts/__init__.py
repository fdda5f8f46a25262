"""Generated true/false statements of public facts: the positive control of every pipeline."""

from interp.sources.facts.source import FactsSource
from interp.sources.facts.topics import TOPICS, Topic

__all__ = ["TOPICS", "FactsSource", "Topic"]
