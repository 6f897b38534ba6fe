"""The embedded `shapes` model: scenes, captions and renderer, the checker that grades pictures, and the training.

`palette`, `scenes`, `captions`, `render`, `reader` and `checker` need numpy only; the rest needs torch.
"""
