"""What serving engines add to a step, fitted to the public runs, engine by engine.

    python -m experiments.fit_service            prints parameters and errors
    python -m experiments.fit_service --write    and writes them to explorer/service/engines.toml

Two minutes. Parameters are common to all models, machines and layouts of an engine. Runs whose inputs do not say what
was run are left out (`explorer.fidelity.repeats`), and the loss forgives those that speculate without saying so.
"""
