"""The questions of Search-R1 as the search environment reads them: ``--local_dir FOLDER``."""

from rsipo.searchdata.preprocess_command import preprocess_search_r1
from rsipo.searchdata.script import run_script

if __name__ == "__main__":
    run_script(preprocess_search_r1)
