"""Entry points of the library: `generate`, and `custom_generate` for transformers' own."""
