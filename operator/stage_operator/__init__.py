"""Keeps DiffusionStages: reads what the cluster holds, decides what should follow, and does it."""
