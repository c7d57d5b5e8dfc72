"""Models carried away: folders that other engines read, or a refusal that names the nearest they can."""
