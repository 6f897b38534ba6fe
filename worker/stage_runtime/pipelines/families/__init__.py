"""Models whose code is ours, since diffusers has none for them: a folder each, named by their records."""
