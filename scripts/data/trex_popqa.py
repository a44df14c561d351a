"""PopQA-like questions from FlashRAG's T-REx: ``--trex trex/train.jsonl --out FOLDER``."""

from rsipo.searchdata.script import run_script
from rsipo.searchdata.trex_command import trex_popqa

if __name__ == "__main__":
    run_script(trex_popqa)
