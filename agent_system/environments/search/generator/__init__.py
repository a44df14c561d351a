"""A generated world of invented people, places and books: a corpus, and questions that only searching it can answer."""

from agent_system.environments.search.generator.write import GeneratedData, generate

__all__ = ["GeneratedData", "generate"]
