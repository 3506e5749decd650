"""A Ray cluster of two nodes on this machine, as a process of its own: `python e2e_cluster.py ADDRESS_FILE`.

It writes the cluster's address to the file and lives until its standard input is closed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 16, "num_gpus": 1, "object_store_memory": 300_000_000, "include_dashboard": False}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**{name: value for name, value in NODE.items() if name != "include_dashboard"})
        cluster.wait_for_nodes()
        target = Path(sys.argv[1])
        aside = target.with_suffix(".tmp")
        aside.write_text(cluster.address)
        os.replace(aside, target)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
