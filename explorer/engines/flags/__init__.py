"""The engines' flags as data: what their newest parsers take, and what older ones took."""

from explorer.engines.flags.table import Flag, Renamed, Table, table

__all__ = ["Flag", "Renamed", "Table", "table"]
