"""`python -m seepage.report.evidence > docs/evidence.schema.json`: the JSON Schema of `evidence.json`."""

import json

from seepage.report.evidence.statement import json_schema

if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
