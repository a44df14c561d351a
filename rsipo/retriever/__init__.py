"""The ``rsipo retriever`` commands: build an index, serve it, measure the service."""
