"""The search training set of qwen2.5-3b: five sources and PopQA-like questions; 500 SFT tasks over all six."""

from rsipo.searchdata.script import run_script
from rsipo.searchdata.train_command import train_set_script

if __name__ == "__main__":
    run_script(train_set_script("qwen2.5-3b"))
