"""What files a run can read: recognize them, and write a config for them."""
