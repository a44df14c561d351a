"""The SFT tasks of ALFWorld: 500 training games, 84 or 83 of each task type."""

from rsipo.searchdata.script import run_script
from rsipo.sft.sample_script import sample_alfworld

if __name__ == "__main__":
    run_script(sample_alfworld)
