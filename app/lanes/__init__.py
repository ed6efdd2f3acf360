"""One device each."""
