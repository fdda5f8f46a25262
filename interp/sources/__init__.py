"""Item sources, one module or package each. `interp.registry` opens them by name."""
