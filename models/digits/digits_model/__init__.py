"""The embedded `digits` model: its pictures, the reader that grades them, and the training.

`glyphs` and `reader` need numpy only; the rest needs torch.
"""
