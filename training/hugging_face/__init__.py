"""Import and export of weights in the format of Hugging Face transformers."""
