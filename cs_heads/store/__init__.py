"""Every result on disk, under what identifies it."""
