"""The bundled trainer: a decoder trained with DDP or FSDP on the rows of the loader.

Run it with `python -m training`; `python -m training --help` lists the commands.
"""
