"""Procedural games in ALFWorld's format, so that nothing need be downloaded.

Results on generated games are no ALFWorld results and must never be reported as such.
"""

from agent_system.environments.alfworld.generator.presets import KNOBS, PRESETS, Preset, parse_knobs, resolve_preset
from agent_system.environments.alfworld.generator.tables import SPLITS, TASK_TYPES
from agent_system.environments.alfworld.generator.write import GenerationReport, generate_games

__all__ = [
    "KNOBS",
    "PRESETS",
    "SPLITS",
    "TASK_TYPES",
    "GenerationReport",
    "Preset",
    "generate_games",
    "parse_knobs",
    "resolve_preset",
]
