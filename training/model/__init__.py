"""The decoder: layers, attention, loss, adapters, initial weights and size."""
