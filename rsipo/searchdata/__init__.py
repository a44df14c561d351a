"""Data of search-based QA: downloads, the two parquet schemas, training sets without test questions, and their records."""
