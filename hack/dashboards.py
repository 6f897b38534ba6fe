"""Write the chart's Grafana dashboards.

python hack/dashboards.py            write them
python hack/dashboards.py --check    fail if a file differs from what hack/grafana says
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from grafana.fleet import FLEET
from grafana.keeper import OPERATOR
from grafana.panels import as_json
from grafana.stage import STAGE

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = "helm/omnistage/dashboards"
DASHBOARDS: Final = {"fleet": FLEET, "stage": STAGE, "operator": OPERATOR}


def main() -> int:
    check = "--check" in sys.argv[1:]
    drifted = []
    for name, text in generated().items():
        file = ROOT / name
        if check:
            drifted += [] if file.exists() and file.read_text(encoding="utf-8") == text else [name]
        else:
            file.write_text(text, encoding="utf-8")
    for name in drifted:
        print(f"{name} differs from hack/grafana: run python hack/dashboards.py", file=sys.stderr)
    return 1 if drifted else 0


def generated() -> dict[str, str]:
    """Every file by its path from the repository's root."""
    return {
        f"{FOLDER}/{name}.json": json.dumps(as_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }


if __name__ == "__main__":
    sys.exit(main())
