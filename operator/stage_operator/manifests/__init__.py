"""What a stage is made of: one module a kind, each from values to a manifest."""
