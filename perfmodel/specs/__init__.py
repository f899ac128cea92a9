"""Descriptions: hardware, models, software, layouts, and where they live."""
