"""Shaw, Transformer-XL and DeBERTa: products with vectors by distance."""
