"""From a layout and its load to files that start servers of SGLang and vLLM, each read back before it is handed out."""

from explorer.engines.export.answer import Export, export
from explorer.engines.export.errors import ExportError
from explorer.engines.export.intent import Intent, server_of, settings_of
from explorer.engines.export.options import Form, Options, choice

__all__ = ["Export", "ExportError", "Form", "Intent", "Options", "choice", "export", "server_of", "settings_of"]
