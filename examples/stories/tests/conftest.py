"""Put the scripts' folder on the path, as it is when they are run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
