"""What Ray, veRL, torch and the tokenizers read from the environment, set before anything imports them."""

import os

from rsipo.ray_cluster import prepare_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_environment("cpu")
