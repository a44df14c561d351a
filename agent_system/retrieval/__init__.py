"""Passage retrieval: a corpus, encoders, indexes, an HTTP service in front of them, and its client."""
