"""Models whose task heads are known by construction, and what methods find in them."""
