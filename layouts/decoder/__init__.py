"""The decoder whose parallel form is a layout: modules, caches, and the compiled step."""
