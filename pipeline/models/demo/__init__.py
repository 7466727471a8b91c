"""The texts of the demo, and the models that are trained on them."""
