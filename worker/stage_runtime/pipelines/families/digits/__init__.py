"""The embedded model `digits`: one coloured digit on black, 32 × 32 pixels, drawn by rectified flow on the pixels."""
