"""The decoder: layers, loss, initial weights and size."""
