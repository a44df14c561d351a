"""Stage 1: the base model's trajectories, skills written for them by an external LLM, and the data for fine-tuning."""
