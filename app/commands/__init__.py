"""Small programs over the rooms below."""
