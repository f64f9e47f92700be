"""Rules of the serving engines as pure functions: what a scheduler, a pool or a start-up hook computes from its flags.

The rules are those of SGLang 0.5.23 and DeepEP unless a docstring says otherwise. A module holds one subject; nothing
here knows a model or a chip by name.
"""
