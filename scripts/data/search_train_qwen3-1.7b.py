"""The search training set of qwen3-1.7b: five sources and PopQA-like questions; 500 SFT tasks, stratified by source."""

from rsipo.searchdata.script import run_script
from rsipo.searchdata.train_command import train_set_script

if __name__ == "__main__":
    run_script(train_set_script("qwen3-1.7b"))
