"""Train short, test long: one small model for each scheme, under identical conditions, judged far past its length."""
