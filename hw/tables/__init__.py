"""Public tables of measured kernels and exchanges, read where they are installed and interpolated.

They are the op tables of the package aiconfigurator-core (Apache-2.0, ai-dynamo/aiconfigurator): parquet files under
its `systems/data`. The package is never imported, and nothing else of it is read.
"""

from hw.tables.forms import Kind
from hw.tables.source import ENGINES, OpTables, Reading, TablesError, installed

__all__ = ["ENGINES", "Kind", "OpTables", "Reading", "TablesError", "installed"]
