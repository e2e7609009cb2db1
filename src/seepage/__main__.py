"""`python -m seepage` is `seepage`, for a working folder that is one's own.

Python itself imports from there before this file can take it off the path. In a folder that may be a stranger's, only
the command `seepage` and `python -P -m seepage` import nothing of it.
"""

import sys
from pathlib import Path

HERE = str(Path.cwd())
if sys.path and sys.path[0] in ("", HERE) and Path(HERE) != Path(__file__).parents[1]:
    del sys.path[0]  # which Python itself puts there; code of one's own (module:name) is looked for on request

from seepage.cli import main  # noqa: E402

if __name__ == "__main__":  # and not where a worker imports the main module anew
    main()
