"""The bundled trainer: one plain decoder, DDP or FSDP, fed by the loader. `python -m training --help`."""
