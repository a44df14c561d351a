"""The embedded policy: a Qwen2 model of 0.76 M parameters, warm-started here, that a laptop can train with RSIPO."""
