"""Scripts in the place of those that measured runs were made by, where the source names the model only.

They run in an environment of their own, never in this process. Where the source does not say, they use the commonest
choice: 32-bit, SGD with momentum, the model's own image size.
"""
