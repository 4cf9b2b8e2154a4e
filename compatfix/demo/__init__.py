"""A small trained target and draft, made from nothing: the material for measuring real acceptance."""
