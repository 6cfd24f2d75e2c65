"""What rankings say."""
