"""Values without a column, as the JSON text of a `rest` column."""

from __future__ import annotations

import json

as_json = json.JSONEncoder(ensure_ascii=False).encode  # made once: json.dumps makes one a call
