"""Access to files on disks and in object stores."""
