"""LightGBM models: their text checked before it is read, and small trees evaluated without the library."""
