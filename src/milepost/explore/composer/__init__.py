"""Schemes put together from menus, side by side: what each does with a query and its keys."""
