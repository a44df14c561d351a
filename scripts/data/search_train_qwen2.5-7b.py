"""The search training set of qwen2.5-7b: NQ, TriviaQA, HotpotQA, 2WikiMultiHopQA and MuSiQue; 100 SFT tasks of each."""

from rsipo.searchdata.script import run_script
from rsipo.searchdata.train_command import train_set_script

if __name__ == "__main__":
    run_script(train_set_script("qwen2.5-7b"))
