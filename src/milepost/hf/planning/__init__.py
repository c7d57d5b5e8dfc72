"""Which methods extend a model, from its configuration, and the best one by measurement."""
