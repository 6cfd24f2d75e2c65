"""The engine: answers which masks do what to which examples, and counts what that costs."""
