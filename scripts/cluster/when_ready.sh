#!/usr/bin/env bash
# Wait until the Ray cluster at RSIPO_RAY_ADDRESS has NODES nodes (at most RSIPO_CLUSTER_DEADLINE seconds), then run the command.
#   bash scripts/cluster/when_ready.sh NODES COMMAND...
set -euo pipefail
wanted=$1; shift
python - "$wanted" "${RSIPO_CLUSTER_DEADLINE:-600}" <<'PY'
import os, sys, time
import ray

wanted, limit, address = int(sys.argv[1]), float(sys.argv[2]), os.environ["RSIPO_RAY_ADDRESS"]
start, alive = time.monotonic(), 0
while time.monotonic() - start < limit:
    try:
        ray.init(address=address, logging_level="error", log_to_driver=False)
        alive = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
    except ConnectionError:
        alive = 0
    if alive >= wanted:
        sys.exit(0)
    print(f"cluster: {alive} of {wanted} nodes after {time.monotonic() - start:.0f} s", flush=True)
    time.sleep(5)
sys.exit(f"cluster: only {alive} of {wanted} nodes joined {address} in {limit:.0f} s; look at the log of `ray start` on the others")
PY
exec "$@"
