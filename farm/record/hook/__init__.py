"""What a watched process loads: this folder is first on its PYTHONPATH.  Standard library only, from Python 3.8 on."""
