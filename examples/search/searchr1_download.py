"""The e5 index and the 2018 Wikipedia corpus of Search-R1: ``--local_dir FOLDER``; resumes, and checks what it got."""

from rsipo.searchdata.download_command import searchr1_download
from rsipo.searchdata.script import run_script

if __name__ == "__main__":
    run_script(searchr1_download)
